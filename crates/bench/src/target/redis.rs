//! Redis as a lock: `SET key value NX PX ttl`, and a script that deletes the key only if the value is the
//! caller's. One server without consensus: a lower bound for the cost of a lock. It has no queue.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::connections::{Breaks, Connections};
use super::pipelined::{Cut, Pipelined, Shape};
use super::{Ask, Fleet, Result, Session, Store, draw, has_not};
use crate::error::BenchError;
use crate::plan::Plan;

/// Deletes a key only if it still has the caller's value.
const RELEASE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// One server.
pub struct Redis {
    connections: Connections<Wire>,
    endpoints: Vec<String>,
}

/// One connection, and the release script's name on that server.
struct Wire {
    pipelined: Pipelined<Resp>,
    release: String,
}

impl Breaks for Wire {
    fn broken(&self) -> bool {
        self.pipelined.broken()
    }
}

/// The replies that occur here.
enum Reply {
    Text(String),
    Number(i64),
    Nothing,
    Wrong(String),
}

struct Resp;

impl Shape for Resp {
    type Reply = Reply;

    fn cut(&mut self, bytes: &[u8]) -> Result<Option<(usize, Cut<Reply>)>> {
        let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
        let line = String::from_utf8_lossy(&bytes[1..end]).into_owned();
        let number = || line.parse::<i64>().map_err(|_| BenchError::new("a reply has no number"));
        let reply = match bytes[0] {
            b'+' => Reply::Text(line),
            b'-' => Reply::Wrong(line),
            b':' => Reply::Number(number()?),
            b'$' => {
                let length = number()?;
                if length < 0 {
                    return Ok(Some((end + 2, Cut::Reply(Reply::Nothing))));
                }
                let whole = end + 2 + length as usize + 2;
                if bytes.len() < whole {
                    return Ok(None);
                }
                let text = String::from_utf8_lossy(&bytes[end + 2..whole - 2]).into_owned();
                return Ok(Some((whole, Cut::Reply(Reply::Text(text)))));
            }
            other => return Err(BenchError::new(format!("a reply begins with byte {other}"))),
        };
        Ok(Some((end + 2, Cut::Reply(reply))))
    }
}

fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

impl Wire {
    async fn connect(endpoint: String) -> Result<Wire> {
        let pipelined = Pipelined::start(TcpStream::connect(&endpoint).await?, Vec::new(), Resp)?;
        match pipelined.ask(command(&["SCRIPT", "LOAD", RELEASE])).await? {
            Reply::Text(release) => Ok(Wire { pipelined, release }),
            _ => Err(BenchError::new("the script was not taken")),
        }
    }
}

impl Store for Redis {
    type Session = RedisSession;
    type Fleet = RedisFleet;

    async fn reach(plan: &Plan) -> Result<Redis> {
        let connections = Connections::new(&plan.endpoints, plan.connections.min(plan.clients));
        let store = Redis { connections, endpoints: plan.endpoints.clone() };
        store.connections.get(0, Wire::connect).await?;
        Ok(store)
    }

    async fn open(&self, way: usize, ttl: Duration) -> Result<RedisSession> {
        let wire = self.connections.get(way, Wire::connect).await?;
        Ok(RedisSession { wire, owner: format!("{:032x}", draw()), ttl_ms: ttl.as_millis().to_string() })
    }

    async fn fleet(&self, ask: &Ask) -> Result<RedisFleet> {
        let endpoint = &self.endpoints[ask.way % self.endpoints.len()];
        let wire = Wire::connect(endpoint.clone()).await?;
        let ttl_ms = ask.ttl.as_millis().to_string();
        let owner = format!("{:032x}", draw());
        let keys: Vec<String> =
            (ask.first..ask.first + ask.count).map(|number| ask.resource(number)).collect();
        let set = keys.iter().map(|key| wire.pipelined.put(command(&["SET", key, &owner, "PX", &ttl_ms])));
        for answer in set.collect::<Result<Vec<_>>>()? {
            answer.await.map_err(|_| BenchError::unreachable("the connection broke"))?;
        }
        let renewals = keys.iter().map(|key| command(&["PEXPIRE", key, &ttl_ms])).collect();
        Ok(RedisFleet { wire, renewals })
    }

    async fn leases(&self, _prefix: &str) -> Result<u64> {
        match self.connections.get(0, Wire::connect).await?.pipelined.ask(command(&["DBSIZE"])).await? {
            Reply::Number(many) => Ok(many as u64),
            _ => Err(BenchError::new("the server did not report the number of keys")),
        }
    }

    async fn step_down(&self) -> Result<()> {
        has_not("redis", "leader to step down")
    }

    async fn watch(&self, _: usize, _: &str) -> Result<mpsc::UnboundedReceiver<String>> {
        has_not("redis", "watch that tells of every lock")
    }
}

/// One owner's name.
pub struct RedisSession {
    wire: Arc<Wire>,
    owner: String,
    ttl_ms: String,
}

impl Session for RedisSession {
    type Place = String;

    async fn queue(&mut self, resource: &str) -> Result<String> {
        let set = command(&["SET", resource, &self.owner, "NX", "PX", &self.ttl_ms]);
        match self.wire.pipelined.ask(set).await? {
            Reply::Text(_) => Ok(resource.to_owned()),
            Reply::Nothing => has_not("redis", "queue"),
            Reply::Wrong(why) => Err(BenchError::new(why)),
            Reply::Number(_) => Err(BenchError::new("a strange reply")),
        }
    }

    async fn granted(&mut self, _place: &mut String) -> Result<()> {
        Ok(())
    }

    async fn release(&mut self, place: String) -> Result<()> {
        let release = command(&["EVALSHA", &self.wire.release, "1", &place, &self.owner]);
        match self.wire.pipelined.ask(release).await? {
            Reply::Number(1) => Ok(()),
            Reply::Wrong(why) => Err(BenchError::new(why)),
            _ => Err(BenchError::new("there was nothing to release")),
        }
    }

    async fn clear(&mut self, resource: &str) -> Result<()> {
        let release = command(&["EVALSHA", &self.wire.release, "1", resource, &self.owner]);
        self.wire.pipelined.ask(release).await.map(drop)
    }

    async fn renew(&mut self) -> Result<()> {
        has_not("redis", "session")
    }

    async fn died(&mut self) -> Result<()> {
        has_not("redis", "proof of death")
    }

    fn fall_silent(&mut self) {}

    fn connected(&self) -> bool {
        !self.wire.broken()
    }
}

/// Keys that are renewed one by one, in one pipeline.
pub struct RedisFleet {
    wire: Wire,
    renewals: Vec<Vec<u8>>,
}

impl Fleet for RedisFleet {
    async fn renew_all(&mut self) -> Result<u64> {
        let asked: Vec<_> = self
            .renewals
            .iter()
            .map(|renewal| self.wire.pipelined.put(renewal.clone()))
            .collect::<Result<_>>()?;
        let mut renewed = 0;
        for answer in asked {
            if let Ok(Reply::Number(many)) = answer.await {
                renewed += many as u64;
            }
        }
        Ok(renewed)
    }
}
