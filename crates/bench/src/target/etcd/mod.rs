//! etcd over its v3 API. A lock follows the recipe of etcd's own client library (`concurrency.Mutex`): a
//! transaction puts a key under the client's lease and reads who was first; everybody else watches the key
//! before its own. A cycle of a free lock is two calls, the transaction and the delete.

mod messages;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use self::messages::*;
use super::connections::{Breaks, Connections};
use super::{Ask, Fleet, Result, Session, Store, has_not};
use crate::error::BenchError;
use crate::plan::Plan;

const RANGE: &str = "/etcdserverpb.KV/Range";
const PUT: &str = "/etcdserverpb.KV/Put";
const DELETE: &str = "/etcdserverpb.KV/DeleteRange";
const TXN: &str = "/etcdserverpb.KV/Txn";
const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const MOVE_LEADER: &str = "/etcdserverpb.Maintenance/MoveLeader";

/// Calls of one fleet under way while it is set up.
const UNDER_WAY: usize = 64;

/// A cluster.
pub struct Etcd {
    connections: Connections<Wire>,
    endpoints: Vec<String>,
}

/// One HTTP/2 connection.
struct Wire {
    channel: Channel,
    broken: AtomicBool,
}

impl Breaks for Wire {
    fn broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }
}

impl Wire {
    async fn connect(endpoint: String) -> Result<Wire> {
        let channel = Endpoint::from_shared(format!("http://{endpoint}"))
            .map_err(|error| BenchError::new(format!("{endpoint} is no address: {error}")))?
            .tcp_nodelay(true)
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(16 << 20)
            .connect()
            .await
            .map_err(|error| BenchError::unreachable(error.to_string()))?;
        Ok(Wire { channel, broken: AtomicBool::new(false) })
    }

    async fn call<Q, A>(&self, path: &'static str, question: Q) -> Result<A>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        let ready = grpc.ready().await;
        let answer = match ready {
            Ok(()) => {
                let codec: ProstCodec<Q, A> = ProstCodec::default();
                grpc.unary(Request::new(question), PathAndQuery::from_static(path), codec).await
            }
            Err(error) => Err(tonic::Status::unavailable(error.to_string())),
        };
        answer.map(|answer| answer.into_inner()).map_err(|status| self.trouble(status))
    }

    /// A stream of questions and answers; the questions are put into the sender.
    async fn converse<Q, A>(
        &self,
        path: &'static str,
        first: Option<Q>,
    ) -> Result<(mpsc::UnboundedSender<Q>, Streaming<A>)>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let (questions, waiting) = mpsc::unbounded_channel();
        if let Some(first) = first {
            let _ = questions.send(first);
        }
        let outgoing = stream::unfold(waiting, |mut waiting: mpsc::UnboundedReceiver<Q>| async move {
            waiting.recv().await.map(|question| (question, waiting))
        });
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| BenchError::unreachable(error.to_string()))?;
        let codec: ProstCodec<Q, A> = ProstCodec::default();
        let answers = grpc.streaming(Request::new(outgoing), PathAndQuery::from_static(path), codec).await;
        Ok((questions, answers.map_err(|status| self.trouble(status))?.into_inner()))
    }

    fn trouble(&self, status: tonic::Status) -> BenchError {
        // "no leader" and the like come as unavailable too, over a connection that stands.
        let transport = !status.message().starts_with("etcdserver:");
        if transport && matches!(status.code(), tonic::Code::Unavailable | tonic::Code::Unknown) {
            self.broken.store(true, Ordering::Release);
        }
        status.into()
    }

    async fn grant(&self, ttl: Duration) -> Result<i64> {
        // etcd counts whole seconds.
        let grant = LeaseGrantRequest { ttl_seconds: ttl.as_secs_f64().ceil() as i64 };
        let granted: LeaseGrantResponse = self.call(GRANT, grant).await?;
        Ok(granted.id)
    }
}

/// The end of the range of all keys that begin like this.
fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

impl Store for Etcd {
    type Session = EtcdSession;
    type Fleet = EtcdFleet;

    async fn reach(plan: &Plan) -> Result<Etcd> {
        let connections = Connections::new(&plan.endpoints, plan.connections.min(plan.clients));
        let store = Etcd { connections, endpoints: plan.endpoints.clone() };
        store.connections.get(0, Wire::connect).await?;
        Ok(store)
    }

    async fn open(&self, way: usize, ttl: Duration) -> Result<EtcdSession> {
        let wire = self.connections.get(way, Wire::connect).await?;
        let lease = wire.grant(ttl).await?;
        Ok(EtcdSession { wire, lease, keep_alive: None })
    }

    async fn fleet(&self, ask: &Ask) -> Result<EtcdFleet> {
        let wire = Wire::connect(self.endpoints[ask.way % self.endpoints.len()].clone()).await?;
        let mut leases = Vec::with_capacity(ask.count);
        let all: Vec<usize> = (ask.first..ask.first + ask.count).collect();
        for some in all.chunks(UNDER_WAY) {
            let made = some.iter().map(|number| {
                let (wire, ask) = (&wire, &ask);
                async move {
                    let lease = wire.grant(ask.ttl).await?;
                    if ask.leases {
                        let key = ask.resource(*number).into_bytes();
                        let put = PutRequest { key, value: Vec::new(), lease };
                        let _: PutResponse = wire.call(PUT, put).await?;
                    }
                    Ok::<_, BenchError>(lease)
                }
            });
            leases.extend(futures_util::future::try_join_all(made).await?);
        }
        // The stream is opened by its first message.
        let (questions, answers) = wire.converse(KEEP_ALIVE, leases.first().map(keep)).await?;
        let mut fleet = EtcdFleet { _wire: wire, leases, questions, answers };
        fleet.next().await?;
        Ok(fleet)
    }

    async fn leases(&self, prefix: &str) -> Result<u64> {
        let key = prefix.as_bytes().to_vec();
        let range_end = prefix_end(&key);
        let range = RangeRequest { key, range_end, count_only: true, ..Default::default() };
        let answer: RangeResponse = self.connections.get(0, Wire::connect).await?.call(RANGE, range).await?;
        Ok(answer.count as u64)
    }

    async fn step_down(&self) -> Result<()> {
        let mut members = Vec::new();
        for endpoint in &self.endpoints {
            let wire = Wire::connect(endpoint.clone()).await?;
            let status: StatusResponse = wire.call(STATUS, StatusRequest {}).await?;
            members.push((wire, status.header.unwrap_or_default().member_id, status.leader));
        }
        let leader = members.iter().find(|(_, member, leader)| member == leader);
        let other = members.iter().find(|(_, member, leader)| member != leader);
        let (Some((wire, ..)), Some((_, target, _))) = (leader, other) else {
            return Err(BenchError::new("name all members' endpoints, so that one can take over"));
        };
        let _: MoveLeaderResponse = wire.call(MOVE_LEADER, MoveLeaderRequest { target: *target }).await?;
        Ok(())
    }

    async fn watch(&self, way: usize, prefix: &str) -> Result<mpsc::UnboundedReceiver<String>> {
        let wire = Wire::connect(self.endpoints[way % self.endpoints.len()].clone()).await?;
        let key = prefix.as_bytes().to_vec();
        let create = WatchCreateRequest { range_end: prefix_end(&key), key, start_revision: 0 };
        let first = WatchRequest { create: Some(create) };
        let (questions, mut answers) = wire.converse::<_, WatchResponse>(WATCH, Some(first)).await?;
        answers.message().await?;
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let _open = (wire, questions);
            while let Ok(Some(answer)) = answers.message().await {
                let puts = answer.events.into_iter().filter(|event| event.kind != DELETED);
                for key in puts.filter_map(|event| event.kv).map(|kv| kv.key) {
                    // The resource is what stands before the lease's number.
                    let key = String::from_utf8_lossy(&key).into_owned();
                    let resource = key.rsplit_once('/').map_or(key.as_str(), |(resource, _)| resource);
                    if sender.send(resource.to_owned()).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(receiver)
    }
}

fn keep(lease: &i64) -> LeaseKeepAliveRequest {
    LeaseKeepAliveRequest { id: *lease }
}

type KeepAlive = (mpsc::UnboundedSender<LeaseKeepAliveRequest>, Streaming<LeaseKeepAliveResponse>);

/// One lease, as a session.
pub struct EtcdSession {
    wire: Arc<Wire>,
    lease: i64,
    keep_alive: Option<KeepAlive>,
}

/// A key in the queue of a lock.
pub struct Place {
    prefix: Vec<u8>,
    key: Vec<u8>,
    /// When the key was created; the lock belongs to the smallest.
    revision: i64,
    held: bool,
}

impl EtcdSession {
    fn key(&self, resource: &str) -> (Vec<u8>, Vec<u8>) {
        (format!("{resource}/").into_bytes(), format!("{resource}/{:x}", self.lease).into_bytes())
    }
}

impl Session for EtcdSession {
    type Place = Place;

    async fn queue(&mut self, resource: &str) -> Result<Place> {
        let (prefix, key) = self.key(resource);
        let owner = RequestOp {
            range: Some(RangeRequest {
                key: prefix.clone(),
                range_end: prefix_end(&prefix),
                limit: 1,
                sort_order: ASCENDING,
                sort_target: BY_CREATION,
                ..Default::default()
            }),
            put: None,
        };
        let put = PutRequest { key: key.clone(), value: Vec::new(), lease: self.lease };
        let get = RangeRequest { key: key.clone(), ..Default::default() };
        let untaken =
            Compare { target: COMPARE_CREATION, key: key.clone(), create_revision: Some(0), result: 0 };
        let transaction = TxnRequest {
            compare: vec![untaken],
            success: vec![RequestOp { put: Some(put), range: None }, owner.clone()],
            failure: vec![RequestOp { range: Some(get), put: None }, owner],
        };
        let answer: TxnResponse = self.wire.call(TXN, transaction).await?;
        let created =
            |at: usize| answer.responses.get(at)?.range.as_ref()?.kvs.first().map(|kv| kv.create_revision);
        let revision = match answer.succeeded {
            true => answer.header.as_ref().map_or(0, |header| header.revision),
            false => created(0).unwrap_or(0),
        };
        let held = created(1).is_none_or(|first| first == revision);
        Ok(Place { prefix, key, revision, held })
    }

    async fn granted(&mut self, place: &mut Place) -> Result<()> {
        while !place.held {
            // The key before one's own, as it is now; then its deletion, from then on.
            let before = RangeRequest {
                key: place.prefix.clone(),
                range_end: prefix_end(&place.prefix),
                limit: 1,
                sort_order: DESCENDING,
                sort_target: BY_CREATION,
                max_create_revision: place.revision - 1,
                ..Default::default()
            };
            let answer: RangeResponse = self.wire.call(RANGE, before).await?;
            let Some(last) = answer.kvs.into_iter().next() else {
                place.held = true;
                break;
            };
            let create = WatchCreateRequest {
                key: last.key,
                range_end: Vec::new(),
                start_revision: answer.header.map_or(0, |header| header.revision),
            };
            let first = WatchRequest { create: Some(create) };
            let (_questions, mut answers) =
                self.wire.converse::<_, WatchResponse>(WATCH, Some(first)).await?;
            loop {
                let answer = answers.message().await?.ok_or_else(|| BenchError::new("the watch ended"))?;
                if answer.canceled || answer.events.iter().any(|event| event.kind == DELETED) {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn release(&mut self, place: Place) -> Result<()> {
        let deleted: DeleteRangeResponse =
            self.wire.call(DELETE, DeleteRangeRequest { key: place.key }).await?;
        if deleted.deleted == 1 { Ok(()) } else { Err(BenchError::new("there was nothing to release")) }
    }

    async fn clear(&mut self, resource: &str) -> Result<()> {
        let key = self.key(resource).1;
        let _: DeleteRangeResponse = self.wire.call(DELETE, DeleteRangeRequest { key }).await?;
        Ok(())
    }

    async fn renew(&mut self) -> Result<()> {
        let keep = keep(&self.lease);
        let (questions, answers) = match &mut self.keep_alive {
            Some(open) => open,
            None => {
                let open = self.wire.converse(KEEP_ALIVE, Some(keep.clone())).await?;
                let open = self.keep_alive.insert(open);
                open.1.message().await?;
                open
            }
        };
        questions.send(keep).map_err(|_| BenchError::unreachable("the stream broke"))?;
        match answers.message().await? {
            Some(answer) if answer.ttl_seconds > 0 => Ok(()),
            _ => Err(BenchError::new("the lease has ended")),
        }
    }

    async fn died(&mut self) -> Result<()> {
        has_not("etcd", "proof of death")
    }

    fn fall_silent(&mut self) {
        self.keep_alive = None;
    }

    fn connected(&self) -> bool {
        !self.wire.broken()
    }
}

/// Many leases on one keep-alive stream.
pub struct EtcdFleet {
    _wire: Wire,
    leases: Vec<i64>,
    questions: mpsc::UnboundedSender<LeaseKeepAliveRequest>,
    answers: Streaming<LeaseKeepAliveResponse>,
}

impl EtcdFleet {
    async fn next(&mut self) -> Result<bool> {
        let answer = self.answers.message().await?;
        let answer = answer.ok_or_else(|| BenchError::unreachable("the stream broke"))?;
        Ok(answer.ttl_seconds > 0)
    }
}

impl Fleet for EtcdFleet {
    async fn renew_all(&mut self) -> Result<u64> {
        for lease in &self.leases {
            self.questions.send(keep(lease)).map_err(|_| BenchError::unreachable("the stream broke"))?;
        }
        let mut renewed = 0;
        for _ in 0..self.leases.len() {
            renewed += u64::from(self.next().await?);
        }
        Ok(renewed)
    }
}
