//! ZooKeeper by the lock recipe of its documentation: an ephemeral sequential node below the lock's node. The
//! smallest one holds the lock; every other client watches the one before its own. A session is a connection,
//! so clients cannot share one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use super::connections::Breaks;
use super::pipelined::{Cut, Pipelined, Shape, broke};
use super::{Ask, Fleet, Result, Session, Store, has_not};
use crate::error::BenchError;
use crate::plan::Plan;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const CHILDREN: i32 = 8;
const PING: i32 = 11;
const XID_EVENT: i32 = -1;
const XID_PING: i32 = -2;
const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const ALL_PERMISSIONS: i32 = 31;

/// How long an answer may take before the connection says that it is still there. ZooKeeper 3.8.0 now and
/// then leaves a read lying until the same connection says something else; its own client library does after
/// a while.
const PINGS_AFTER: Duration = Duration::from_secs(1);

/// An ensemble.
pub struct ZooKeeper {
    endpoints: Vec<String>,
}

/// Who waits for what on one connection.
#[derive(Default)]
struct Awaited {
    watches: HashMap<String, oneshot::Sender<()>>,
    ping: Option<oneshot::Sender<()>>,
}

/// An answer: its error code, and what follows.
struct ZooKeeperReply {
    error: i32,
    body: Vec<u8>,
}

struct Jute(Arc<Mutex<Awaited>>);

impl Shape for Jute {
    type Reply = ZooKeeperReply;

    fn cut(&mut self, bytes: &[u8]) -> Result<Option<(usize, Cut<ZooKeeperReply>)>> {
        let Some(length) = bytes.first_chunk::<4>().map(|length| u32::from_be_bytes(*length) as usize) else {
            return Ok(None);
        };
        let Some(mut message) = bytes.get(4..4 + length) else { return Ok(None) };
        let xid = take_int(&mut message)?;
        let _zxid = take(&mut message, 8)?;
        let error = take_int(&mut message)?;
        let cut = match xid {
            XID_PING => {
                let ping = self.0.lock().expect("no holder of this lock panics").ping.take();
                ping.map(|ping| ping.send(()));
                Cut::Aside
            }
            XID_EVENT => {
                take(&mut message, 8)?;
                let path = take_text(&mut message)?;
                let watch = self.0.lock().expect("no holder of this lock panics").watches.remove(&path);
                watch.map(|watch| watch.send(()));
                Cut::Aside
            }
            _ => Cut::Reply(ZooKeeperReply { error, body: message.to_vec() }),
        };
        Ok(Some((4 + length, cut)))
    }
}

fn take<'a>(bytes: &mut &'a [u8], many: usize) -> Result<&'a [u8]> {
    let (taken, rest) =
        bytes.split_at_checked(many).ok_or_else(|| BenchError::new("an answer is cut short"))?;
    *bytes = rest;
    Ok(taken)
}

fn take_int(bytes: &mut &[u8]) -> Result<i32> {
    Ok(i32::from_be_bytes(take(bytes, 4)?.try_into().expect("four bytes")))
}

fn take_text(bytes: &mut &[u8]) -> Result<String> {
    let length = take_int(bytes)?.max(0) as usize;
    Ok(String::from_utf8_lossy(take(bytes, length)?).into_owned())
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as i32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// A message with its length in front.
fn framed(fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![0; 4];
    fill(&mut out);
    let length = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&length.to_be_bytes());
    out
}

/// One session: a connection.
pub struct ZooKeeperSession {
    pipelined: Pipelined<Jute>,
    awaited: Arc<Mutex<Awaited>>,
    next: i32,
}

impl ZooKeeperSession {
    async fn connect(endpoint: &str, ttl: Duration) -> Result<ZooKeeperSession> {
        let mut stream = TcpStream::connect(endpoint).await?;
        let hello = framed(|out| {
            out.extend_from_slice(&0i32.to_be_bytes());
            out.extend_from_slice(&0i64.to_be_bytes());
            out.extend_from_slice(&(ttl.as_millis() as i32).to_be_bytes());
            out.extend_from_slice(&0i64.to_be_bytes());
            out.extend_from_slice(&16i32.to_be_bytes());
            out.extend_from_slice(&[0; 17]);
        });
        stream.write_all(&hello).await?;
        let mut length = [0; 4];
        stream.read_exact(&mut length).await?;
        let mut welcome = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut welcome).await?;
        let mut rest = welcome.as_slice();
        let (_version, agreed) = (take_int(&mut rest)?, take_int(&mut rest)?);
        if agreed as u128 != ttl.as_millis() {
            let asked = ttl.as_millis();
            return Err(BenchError::new(format!(
                "a TTL of {asked} ms was asked for and {agreed} ms given: set minSessionTimeout and maxSessionTimeout"
            )));
        }
        let awaited: Arc<Mutex<Awaited>> = Arc::default();
        let pipelined = Pipelined::start(stream, Vec::new(), Jute(awaited.clone()))?;
        Ok(ZooKeeperSession { pipelined, awaited, next: 1 })
    }

    async fn ask(&mut self, kind: i32, fill: impl FnOnce(&mut Vec<u8>)) -> Result<ZooKeeperReply> {
        let xid = self.next;
        self.next = if xid == i32::MAX { 1 } else { xid + 1 };
        let question = framed(|out| {
            out.extend_from_slice(&xid.to_be_bytes());
            out.extend_from_slice(&kind.to_be_bytes());
            fill(out);
        });
        let mut answer = self.pipelined.put(question)?;
        loop {
            match tokio::time::timeout(PINGS_AFTER, &mut answer).await {
                Ok(answer) => return answer.map_err(|_| broke()),
                Err(_) => self.say_ping()?,
            }
        }
    }

    fn say_ping(&self) -> Result<()> {
        self.pipelined.say(framed(|out| {
            out.extend_from_slice(&XID_PING.to_be_bytes());
            out.extend_from_slice(&PING.to_be_bytes());
        }))
    }

    async fn create(&mut self, path: &str, flags: i32) -> Result<ZooKeeperReply> {
        self.ask(CREATE, |out| {
            put_text(path, out);
            put_text("", out);
            out.extend_from_slice(&1i32.to_be_bytes());
            out.extend_from_slice(&ALL_PERMISSIONS.to_be_bytes());
            put_text("world", out);
            put_text("anyone", out);
            out.extend_from_slice(&flags.to_be_bytes());
        })
        .await
    }

    /// The node before ours, if there is one.
    async fn before(&mut self, place: &Place) -> Result<Option<String>> {
        let parent = place.parent.clone();
        let answer = self
            .ask(CHILDREN, |out| {
                put_text(&parent, out);
                out.push(0);
            })
            .await?;
        expect(answer.error)?;
        let mut body = answer.body.as_slice();
        let mut before: Option<String> = None;
        for _ in 0..take_int(&mut body)? {
            let name = take_text(&mut body)?;
            if name < place.name && before.as_ref().is_none_or(|before| *before < name) {
                before = Some(name);
            }
        }
        Ok(before)
    }

    async fn delete(&mut self, path: &str) -> Result<i32> {
        let answer = self
            .ask(DELETE, |out| {
                put_text(path, out);
                out.extend_from_slice(&(-1i32).to_be_bytes());
            })
            .await?;
        Ok(answer.error)
    }
}

fn expect(error: i32) -> Result<()> {
    if error == 0 { Ok(()) } else { Err(BenchError::new(format!("error {error}"))) }
}

/// A node in the queue of a lock.
pub struct Place {
    parent: String,
    name: String,
    before: Option<String>,
}

impl Store for ZooKeeper {
    type Session = ZooKeeperSession;
    type Fleet = NoFleet;

    async fn reach(plan: &Plan) -> Result<ZooKeeper> {
        let store = ZooKeeper { endpoints: plan.endpoints.clone() };
        TcpStream::connect(&store.endpoints[0]).await?;
        Ok(store)
    }

    async fn open(&self, way: usize, ttl: Duration) -> Result<ZooKeeperSession> {
        let many = self.endpoints.len();
        let mut last = None;
        for turn in 0..many {
            match ZooKeeperSession::connect(&self.endpoints[(way + turn) % many], ttl).await {
                Ok(session) => return Ok(session),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("there is an endpoint"))
    }

    async fn fleet(&self, _: &Ask) -> Result<NoFleet> {
        has_not("zookeeper", "way to renew many sessions over one connection")
    }

    async fn leases(&self, _: &str) -> Result<u64> {
        has_not("zookeeper", "mass expiry that could be measured with one connection per session")
    }

    async fn step_down(&self) -> Result<()> {
        has_not("zookeeper", "planned change of leader")
    }

    async fn watch(&self, _: usize, _: &str) -> Result<mpsc::UnboundedReceiver<String>> {
        has_not("zookeeper", "watch over all locks that this driver knows")
    }
}

impl Session for ZooKeeperSession {
    type Place = Place;

    async fn queue(&mut self, resource: &str) -> Result<Place> {
        let parent = format!("/{}", resource.replace('/', "_"));
        let mut answer = self.create(&format!("{parent}/lock-"), EPHEMERAL_SEQUENTIAL).await?;
        if answer.error == NO_NODE {
            let made = self.create(&parent, 0).await?.error;
            if made != NODE_EXISTS {
                expect(made)?;
            }
            answer = self.create(&format!("{parent}/lock-"), EPHEMERAL_SEQUENTIAL).await?;
        }
        expect(answer.error)?;
        let path = take_text(&mut answer.body.as_slice())?;
        let name = path.rsplit_once('/').map_or(path.as_str(), |(_, name)| name).to_owned();
        let mut place = Place { parent, name, before: None };
        place.before = self.before(&place).await?;
        Ok(place)
    }

    async fn granted(&mut self, place: &mut Place) -> Result<()> {
        while let Some(before) = &place.before {
            let path = format!("{}/{before}", place.parent);
            let (gone, receiver) = oneshot::channel();
            self.awaited.lock().expect("no holder of this lock panics").watches.insert(path.clone(), gone);
            let answer = self
                .ask(EXISTS, |out| {
                    put_text(&path, out);
                    out.push(1);
                })
                .await?;
            match answer.error {
                0 => receiver.await.map_err(|_| broke())?,
                NO_NODE => {}
                other => expect(other)?,
            }
            place.before = self.before(place).await?;
        }
        Ok(())
    }

    async fn release(&mut self, place: Place) -> Result<()> {
        let error = self.delete(&format!("{}/{}", place.parent, place.name)).await?;
        expect(error)
    }

    async fn clear(&mut self, _resource: &str) -> Result<()> {
        // What an unanswered create left behind has a name that only the server knows; it goes with the
        // session.
        self.pipelined.cut_off();
        Err(BenchError::unreachable("the session is given up"))
    }

    async fn renew(&mut self) -> Result<()> {
        let (ping, receiver) = oneshot::channel();
        self.awaited.lock().expect("no holder of this lock panics").ping = Some(ping);
        self.say_ping()?;
        receiver.await.map_err(|_| broke())
    }

    async fn died(&mut self) -> Result<()> {
        has_not("zookeeper", "proof of death")
    }

    fn fall_silent(&mut self) {
        self.pipelined.cut_off();
    }

    fn connected(&self) -> bool {
        !self.pipelined.broken()
    }
}

/// There is none.
pub struct NoFleet;

impl Fleet for NoFleet {
    async fn renew_all(&mut self) -> Result<u64> {
        has_not("zookeeper", "way to renew many sessions over one connection")
    }
}
