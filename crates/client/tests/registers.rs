//! The suite that every fence passes, on Tenure's own registers: a real node on this machine, over real
//! connections.
//!
//! Registers take no token that the store has not granted, so the suite's numbers stand for grants: the first
//! use of a number is a grant to a new session, after the present holder's lease was ended behind its back,
//! as a pause would end it. The grant is the barrier, because from then on the store refuses every earlier
//! token. One case of the suite is not asked here, the repair of a poisoned mark: a made-up token cannot
//! poison what issues the tokens.

#[allow(dead_code, reason = "the suite has more than registers need")]
#[path = "../../fence/tests/conformance/cases.rs"]
mod cases;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use tenure_client::{CallError, Client, Code, Endpoints, Lease, Session};
use tenure_clock::{Clock, SystemClock};
use tenure_core::{Command, Generation, Permit, PermitCount, Scope, Token};
use tenure_fence::{Barrier, Cursor, FenceError, FenceMark, FindOut, Stale, Takeover};
use tenure_server::{Config, Server};

use cases::{Gate, Subject};

/// Numbers just below a new one that get a grant too, so that late-comers of the suite have a token that was
/// real.
const GAP: u64 = 5;

macro_rules! conform {
    ($($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                cases::$case(Registers::start(stringify!($case))).await;
            }
        )*
    };
}

conform! {
    stale_write_to_untouched_rows_is_refused
    equal_token_is_accepted
    a_write_without_a_barrier_raises_the_mark
    concurrent_writers_of_one_holder_all_land
    concurrent_cursor_writers_do_not_deadlock
    a_zombie_open_across_the_barrier_cannot_land_after_it
    a_barrier_under_fire_is_a_clean_cut
    racing_takeovers_keep_what_they_accept_and_nothing_else
    a_timed_out_barrier_can_be_repeated
    a_barrier_overtaken_by_a_newer_one_is_refused
    deletes_are_guarded_and_do_not_reset_the_fence
    a_restart_does_not_forget_the_mark
    two_resources_do_not_fence_each_other
    two_slots_do_not_fence_each_other
    tokens_near_the_end_stay_exact
    the_cursor_moves_with_the_work_and_only_with_it
    a_permit_without_time_writes_nothing
    a_writer_whose_time_runs_out_inside_does_not_land
    strange_names_stay_names
}

/// A node with a runtime of its own, as another process would have.
struct Node {
    runtime: Option<tokio::runtime::Runtime>,
    server: Option<Server>,
    address: std::net::SocketAddr,
    data: Arc<tempfile::TempDir>,
}

impl Node {
    fn start() -> Node {
        let data = Arc::new(tempfile::tempdir().expect("a temporary folder"));
        Node::start_at("127.0.0.1:0".parse().expect("an address"), data)
    }

    fn start_at(listen: std::net::SocketAddr, data: Arc<tempfile::TempDir>) -> Node {
        let config = Config::single(listen, data.path().to_owned());
        // From a thread of its own: a runtime cannot be driven from inside another.
        let (runtime, server) = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .expect("a runtime");
            let server = runtime.block_on(Server::start(config)).expect("the node starts");
            (runtime, server)
        })
        .join()
        .expect("the node starts");
        Node { address: server.address(), runtime: Some(runtime), server: Some(server), data }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("the node runs")
    }

    fn stop(&mut self) {
        if let (Some(runtime), Some(server)) = (self.runtime.take(), self.server.take()) {
            let stop = std::thread::spawn(move || {
                runtime.block_on(server.stop());
                runtime.shutdown_background();
            });
            stop.join().expect("the node stops");
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A number of the suite, as a grant.
struct Holder {
    token: Token,
    session: Session,
    /// Kept, so that it is not given back: the holder does not know that its lease has ended.
    _lease: Lease,
}

/// The holders of one scope, by their numbers in the suite.
type Holders = BTreeMap<u64, Arc<Holder>>;

struct Registers(Arc<Inside>);

struct Inside {
    node: RwLock<Arc<Node>>,
    client: Client,
    holders: tokio::sync::Mutex<BTreeMap<Scope, Holders>>,
}

impl Registers {
    fn start(case: &str) -> Registers {
        // Shared by whichever cases run at the same time, and gone with the last of them.
        static SHARED: Mutex<Weak<Node>> = Mutex::new(Weak::new());
        let node = if case == "a_restart_does_not_forget_the_mark" {
            Arc::new(Node::start())
        } else {
            let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            shared.upgrade().unwrap_or_else(|| {
                let node = Arc::new(Node::start());
                *shared = Arc::downgrade(&node);
                node
            })
        };
        let endpoints: Endpoints = node.address.to_string().parse().expect("an endpoint");
        let client = Client::connect(&endpoints);
        Registers(Arc::new(Inside {
            node: RwLock::new(node),
            client,
            holders: tokio::sync::Mutex::default(),
        }))
    }

    /// The holder that a number stands for; its grant, if the number was never seen.
    async fn holder(&self, scope: &Scope, number: u64) -> Arc<Holder> {
        let (inside, scope) = (self.0.clone(), scope.clone());
        // On its own: a case that gives up half-way must not leave half a grant.
        tokio::spawn(async move { inside.holder(&scope, number).await }).await.expect("granted")
    }

    fn key(scope: &Scope, name: &str) -> String {
        format!("{scope}\n{name}")
    }

    /// What was done, in the suite's words: tokens as its numbers, refusals as a fence tells them.
    async fn answered<T>(
        &self,
        scope: &Scope,
        number: u64,
        done: Result<T, CallError>,
    ) -> Result<(), FenceError> {
        let error = match done {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let presented = cases::token(number);
        match &error {
            CallError::Refused(no) if no.code == Code::StaleToken => {
                let holders = self.0.holders.lock().await;
                let seen = no.about.seen.expect("a stale token is told what was seen");
                let of_scope = holders.get(scope).expect("somebody was granted it");
                // A token issued without a holder, to end a lease, is on the way to the next number.
                let seen = of_scope.iter().find(|(_, holder)| holder.token.get() >= seen);
                let seen =
                    cases::token(*seen.map_or_else(|| of_scope.last_key_value().expect("one").0, |(n, _)| n));
                Err(FenceError::Stale(Stale { scope: scope.clone(), presented, seen }))
            }
            CallError::Refused(no) if no.code == Code::LeaseEnded => {
                Err(FenceError::OutOfTime { scope: scope.clone(), token: presented })
            }
            CallError::Refused(_) => Err(FenceError::Refused { cause: Box::new(error) }),
            _ => Err(FenceError::Unknown { find_out: FindOut::Repeat, cause: Box::new(error) }),
        }
    }

    /// Writes under a permit of the suite, through the library, with the token that its number stands for.
    async fn write(
        &self,
        permit: &Permit,
        writes: &[(&str, &[u8])],
        gate: Option<Gate>,
    ) -> Result<(), FenceError> {
        let (scope, number) = (permit.scope(), permit.token().get());
        let now = SystemClock.now();
        let left = permit.remaining(now);
        if left.is_zero() {
            // The library gives no permit then, and the suite expects that nobody was granted anything.
            return Err(FenceError::OutOfTime { scope: scope.clone(), token: permit.token() });
        }
        let holder = self.holder(scope, number).await;
        let count = PermitCount::default();
        let real = Permit::new(scope.clone(), holder.token, Generation::new(1), now, left, &count);
        let guarded = holder.session.registers().guarded(&real);
        if let Some(gate) = gate {
            gate.pass().await;
        }
        let writes = writes.iter().map(|(name, value)| (Self::key(scope, name), *value));
        let done = guarded.put_all(writes).await;
        self.answered(scope, number, done).await
    }
}

impl Inside {
    async fn holder(&self, scope: &Scope, number: u64) -> Arc<Holder> {
        let mut all = self.holders.lock().await;
        let holders = all.entry(scope.clone()).or_default();
        if let Some(holder) = holders.get(&number) {
            return holder.clone();
        }
        let last = holders.last_key_value().map_or(0, |(number, _)| *number);
        assert!(number > last, "a number that was passed by has no token");
        for next in number.saturating_sub(GAP).max(last + 1).max(1)..=number {
            self.take_from(scope, holders).await;
            holders.insert(next, Arc::new(self.grant(scope, next).await));
        }
        holders[&number].clone()
    }

    /// Ends the present lease of the scope at once.
    async fn take_from(&self, scope: &Scope, holders: &Holders) {
        let Some((_, holder)) = holders.last_key_value() else { return };
        let revoke = Command::Revoke {
            resource: scope.resource.clone(),
            session: Some(holder.session.number()),
            now: true,
            reason: "its holder is paused".into(),
        };
        let node = self.node.read().expect("no panic").clone();
        node.server()
            .node()
            .submit(&tenure_core::Identity::Anyone, revoke)
            .await
            .expect("the node leads")
            .expect("it is held");
    }

    async fn grant(&self, scope: &Scope, number: u64) -> Holder {
        let session = self.client.session().holder(format!("holder-{number}")).ttl(Duration::from_secs(60));
        let session = session.open().await.expect("opened");
        let request = session.acquire(scope.resource.as_str());
        let lease = match scope.slot {
            None => request.await.expect("granted"),
            Some(slot) => {
                let lease = request.slots(2).await.expect("granted");
                assert_eq!(lease.scope().slot, Some(slot), "the slots are taken in turn");
                lease
            }
        };
        let (_, token) = lease.barrier().expect("it is held");
        Holder { token, session, _lease: lease }
    }
}

impl Subject for Registers {
    async fn barrier(&self, takeover: &Takeover) -> Result<Barrier, FenceError> {
        let (scope, number) = (takeover.scope(), takeover.token());
        let left = takeover.remaining(SystemClock.now()).expect("a lease");
        if left.is_zero() {
            return Err(FenceError::OutOfTime { scope: scope.clone(), token: number });
        }
        let permit = cases::permit_for(scope, number.get(), left);
        self.holder(scope, number.get()).await;
        // Nothing that an earlier holder sent can land any more, so what is read now is final. The mark is
        // for those who come later.
        let before = self.0.client.registers().get(Self::key(scope, "mark")).await.expect("read").value;
        let cursor = self.0.client.registers().get(Self::key(scope, "cursor")).await.expect("read");
        let mark = format!("{number} {}", takeover.holder());
        self.write(&permit, &[("mark", mark.as_bytes())], None).await?;
        let text = before.map(|value| String::from_utf8(value.to_vec()).expect("text"));
        let predecessor =
            text.map(|text| text.split(' ').next().expect("a number").parse().expect("a number"));
        Ok(Barrier {
            predecessor: predecessor.map(cases::token),
            seq: cursor.version,
            cursor: cursor.value.map(|value| value.to_vec().into()),
        })
    }

    async fn mark(&self, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        let holders = self.0.holders.lock().await;
        let Some((number, holder)) = holders.get(scope).and_then(|holders| holders.last_key_value()) else {
            return Ok(None);
        };
        // What the store itself says is the newest.
        let node = self.0.node.read().expect("no panic").clone();
        let newest = node.server().node().glance(|machine| machine.lease(&scope.resource)).expect("a lease");
        assert_eq!(newest.token, Some(holder.token));
        let registers = self.0.client.registers();
        let mark = registers.get(Self::key(scope, "mark")).await.expect("read").value;
        let cursor = registers.get(Self::key(scope, "cursor")).await.expect("read");
        Ok(Some(FenceMark {
            token: cases::token(*number),
            holder: mark.and_then(|mark| std::str::from_utf8(&mark).ok()?.split(' ').nth(1)?.parse().ok()),
            seq: cursor.version,
            cursor: cursor.value.map(|value| value.to_vec().into()),
        }))
    }

    async fn repair(&self, _scope: &Scope, _to: Token) -> Result<FenceMark, FenceError> {
        unreachable!("nothing can poison the store that issues the tokens")
    }

    async fn audit(&self, _scope: &Scope) -> String {
        unreachable!("nothing is repaired here")
    }

    async fn put(&self, permit: &Permit, key: &str, value: &str) -> Result<(), FenceError> {
        self.write(permit, &[(key, value.as_bytes())], None).await
    }

    async fn delete(&self, permit: &Permit, key: &str) -> Result<(), FenceError> {
        let (scope, number) = (permit.scope(), permit.token().get());
        let holder = self.holder(scope, number).await;
        let now = SystemClock.now();
        let count = PermitCount::default();
        let real =
            Permit::new(scope.clone(), holder.token, Generation::new(1), now, permit.remaining(now), &count);
        let done = holder.session.registers().guarded(&real).delete(Self::key(scope, key)).await;
        self.answered(scope, number, done).await
    }

    async fn put_and_advance(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        cursor: Cursor,
    ) -> Result<(), FenceError> {
        self.write(permit, &[(key, value.as_bytes()), ("cursor", cursor.as_bytes())], None).await
    }

    /// A command cannot be frozen half-way: as far inside as a writer gets is the moment before it is sent.
    async fn put_through(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        gate: Gate,
    ) -> Result<(), FenceError> {
        self.write(permit, &[(key, value.as_bytes())], Some(gate)).await
    }

    async fn get(&self, scope: &Scope, key: &str) -> Option<String> {
        let found = self.0.client.registers().get(Self::key(scope, key)).await.expect("read").value?;
        Some(String::from_utf8(found.to_vec()).expect("text"))
    }

    async fn restart(&mut self) -> bool {
        let mut node = self.0.node.write().expect("no panic");
        let old = Arc::get_mut(&mut *node).expect("a node of its own");
        old.stop();
        let (address, data) = (old.address, old.data.clone());
        *node = Arc::new(Node::start_at(address, data));
        true
    }
}

/// What takes the place of the repair: there is no way to make the store believe a number that it did not
/// grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_made_up_token_poisons_nothing() {
    let registers = Registers::start("poison");
    let scope = cases::fresh_scope("poison");
    registers.put(&cases::permit(&scope, 4), "a", "four").await.expect("write");
    let holder = registers.holder(&scope, 4).await;
    let count = PermitCount::default();
    let minute = Duration::from_secs(60);
    let made_up =
        Permit::new(scope.clone(), Token::MAX, Generation::new(1), SystemClock.now(), minute, &count);
    let refused = holder.session.registers().guarded(&made_up).put(Registers::key(&scope, "a"), "x").await;
    let CallError::Refused(refused) = refused.expect_err("nobody was granted it") else { panic!("refused") };
    assert_eq!(refused.code, Code::UnknownToken);
    registers.put(&cases::permit(&scope, 4), "a", "still four").await.expect("the holder writes on");
}
