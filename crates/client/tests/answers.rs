//! Answers that are none to what was asked: a store of another version, or a broken one. They must become
//! errors that say what came instead and that nobody knows what was done. They must never take the process
//! down.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_client::testing::Bench;
use tenure_client::{
    AcquireError, CallError, Callback, Client, Effect, Embedded, Execution, LeaseInfo, OpenSession, Opened,
    Route, Session, SessionListener, Store, Tasks, TimeBase, TransferError, Watcher,
};
use tenure_core::{
    Command, Done, Register, RegisterKey, RenewalAnswer, ResourceName, Revision, SessionId, SessionNumber,
    Token,
};

/// Puts another answer in the place of the real one.
type Change = Box<dyn Fn(&Command, Done) -> Done + Send + Sync>;

/// A store whose answers are changed on their way.
#[derive(Clone)]
struct Odd {
    store: Embedded,
    change: Arc<Mutex<Option<Change>>>,
}

impl Odd {
    fn answers(&self, change: impl Fn(&Command, Done) -> Done + Send + Sync + 'static) {
        *self.change.lock().expect("no panic") = Some(Box::new(change));
    }

    fn holders(&self) -> usize {
        let r: ResourceName = "r".parse().expect("a name");
        self.store.look(|machine| machine.lease(&r).map_or(0, |lease| lease.holders.len()))
    }
}

impl Store for Odd {
    fn time_base(&self) -> TimeBase {
        self.store.time_base()
    }

    fn open(&self, open: OpenSession, route: Route, callback: Callback<Opened>) {
        self.store.open(open, route, callback);
    }

    fn renew(
        &self,
        renewals: Vec<(SessionId, u64)>,
        route: Route,
        callback: Callback<Vec<Option<RenewalAnswer>>>,
    ) {
        self.store.renew(renewals, route, callback);
    }

    fn submit(&self, command: Command, callback: Callback<Done>) {
        let (asked, change) = (command.clone(), self.change.clone());
        let callback = Box::new(move |answer: Result<Done, CallError>| {
            let change = change.lock().expect("no panic");
            let answer = answer.map(|done| match &*change {
                Some(change) => change(&asked, done),
                None => done,
            });
            drop(change);
            callback(answer);
        });
        self.store.submit(command, callback);
    }

    fn held(&self, session: SessionId, callback: Callback<Vec<Token>>) {
        self.store.held(session, callback);
    }

    fn listen(&self, session: SessionId, listener: SessionListener) {
        self.store.listen(session, listener);
    }

    fn forget(&self, session: SessionNumber) {
        self.store.forget(session);
    }

    fn lease(&self, resource: ResourceName, callback: Callback<Option<LeaseInfo>>) {
        self.store.lease(resource, callback);
    }

    fn register(&self, key: RegisterKey, callback: Callback<Register>) {
        self.store.register(key, callback);
    }

    fn watch(&self, prefix: String, from: Option<Revision>, watcher: Watcher) {
        self.store.watch(prefix, from, watcher);
    }
}

async fn odd() -> (Odd, Session) {
    let bench = Bench::new();
    let odd = Odd { store: bench.store().clone(), change: Arc::default() };
    let execution = Execution::Tasks(Tasks::current());
    let client = Client::with(Arc::new(odd.clone()), bench.process().clock(), execution);
    let session = client.session().open().await.expect("opened");
    (odd, session)
}

#[track_caller]
fn says(error: &CallError, what: &str) {
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    assert!(error.to_string().contains(what), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_acquire_with_another_answer_is_unknown_and_is_undone() {
    let (odd, session) = odd().await;
    odd.answers(|command, done| match command {
        Command::Acquire(_) => Done::Closed { released: 0 },
        _ => done,
    });
    let Err(AcquireError::Call(error)) = session.acquire("r").await else { panic!("no lease") };
    says(&error, "an acquire was answered with `closed`");
    assert_eq!(odd.holders(), 0, "what it may have been granted is given back");
}

#[tokio::test(start_paused = true)]
async fn a_grant_of_nothing_or_of_something_else_is_unknown() {
    for several in [false, true] {
        let (odd, session) = odd().await;
        odd.answers(move |command, done| match (command, done) {
            (Command::Acquire(_), Done::Granted { mut grants, opened }) => {
                if several {
                    grants[0].resource = "another".parse().expect("a name");
                } else {
                    grants.clear();
                }
                Done::Granted { grants, opened }
            }
            (_, done) => done,
        });
        let Err(AcquireError::Call(error)) = session.acquire("r").await else { panic!("no lease") };
        says(&error, "which were not asked for");
        assert_eq!(odd.holders(), 0, "what it may have been granted is given back");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_with_another_answer_is_unknown() {
    let (odd, session) = odd().await;
    odd.answers(|_, _| Done::Released { released: true });
    let error = session.registers().put("k", "v").await.expect_err("no answer to a write");
    says(&error, "a write was answered with `released`");
}

#[tokio::test(start_paused = true)]
async fn a_release_or_transfer_with_another_answer_is_unknown() {
    let (odd, session) = odd().await;
    let lease = session.acquire("r").await.expect("granted");
    odd.answers(|_, _| Done::Closed { released: 0 });
    says(&lease.release().await.expect_err("no answer to a release"), "a release was answered with `closed`");

    let (odd, session) = self::odd().await;
    let lease = session.acquire("r").await.expect("granted");
    odd.answers(|_, _| Done::Released { released: true });
    let refused = lease.transfer(SessionNumber::new(77)).await;
    // The store refuses it: nobody has that number. That is an answer, and the lease comes back.
    let Err(TransferError::Refused { lease, error }) = refused else { panic!("nobody is there") };
    assert_eq!(error.effect(), Effect::NotApplied);
    drop(lease.permit().expect("it is ours again"));
    tokio::time::sleep(Duration::from_millis(1)).await;
}
