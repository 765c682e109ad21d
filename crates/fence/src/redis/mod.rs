//! Redis. The check and the commands run in one script, beside which nothing else runs.
//!
//! ```ignore
//! let key = fence.key(permit.scope(), "balance");
//! fence.write(&mut connection, &permit, &[set(&key, "90")]).await?;
//! ```
//!
//! **Fenced while the primary lives.** Replication is asynchronous: a failover can lose the mark together
//! with the data, and then an older token is accepted again. Run the barrier anew after every failover. How
//! much a crash of the primary itself can lose is the append-only file's setting: [`Redis::weaknesses`]
//! asks for it. Redis has no timer for a script and no undo: see [`Redis::write`].

use std::future::Future;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Arg, Cmd, ErrorKind, RedisError, Script, ServerErrorKind, Value, cmd};
use tenure_clock::{Clock, SystemClock};
use tenure_core::{HolderName, Scope, Token};

use crate::budget::{self, UNSTATED};
use crate::{
    Authority, Barrier, Cursor, Fence, FenceError, FenceFuture, FenceMark, FindOut, Stale, Takeover,
};

/// The guarded write, as text, for users of other languages.
pub const WRITE_LUA: &str = include_str!("write.lua");
/// The barrier, as text, for users of other languages.
pub const BARRIER_LUA: &str = include_str!("barrier.lua");

/// How the scripts begin an error about a token that is not 16 digits.
const MISUSE: &str = "TN003";

static WRITE: LazyLock<Script> = LazyLock::new(|| Script::new(WRITE_LUA));
static BARRIER: LazyLock<Script> = LazyLock::new(|| Script::new(BARRIER_LUA));
static REPAIR: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("repair.lua")));

/// The fence in one Redis. It holds no connection: use it with any.
#[derive(Clone)]
pub struct Redis {
    prefix: String,
    clock: Arc<dyn Clock>,
}

impl Default for Redis {
    fn default() -> Redis {
        Redis::new("tenure")
    }
}

/// A command to run inside the fence, with the keys that it touches.
#[derive(Clone, Debug)]
pub struct Guarded {
    keys: Vec<String>,
    command: Cmd,
}

/// Sets a key.
pub fn set(key: &str, value: impl redis::ToRedisArgs) -> Guarded {
    guarded(&[key], cmd("SET").arg(key).arg(value).take())
}

/// Deletes a key.
pub fn del(key: &str) -> Guarded {
    guarded(&[key], cmd("DEL").arg(key).take())
}

/// Any command. Every key that it touches must be named, and be one of [`Redis::key`]'s for the scope: a
/// cluster refuses keys of different slots, and an undeclared one would be written on the wrong node.
pub fn guarded(keys: &[&str], command: Cmd) -> Guarded {
    Guarded { keys: keys.iter().map(|key| (*key).to_owned()).collect(), command }
}

impl Redis {
    /// A fence whose keys begin with `prefix`.
    pub fn new(prefix: &str) -> Redis {
        Redis::with_clock(prefix, Arc::new(SystemClock))
    }

    /// The same with another clock.
    pub fn with_clock(prefix: &str, clock: Arc<dyn Clock>) -> Redis {
        Redis { prefix: prefix.replace(['{', '}'], "_"), clock }
    }

    /// The key of a value under a scope: in the same hash slot as the scope's fence, and no other scope's.
    pub fn key(&self, scope: &Scope, name: &str) -> String {
        format!("{}:{}", self.base(scope), name)
    }

    fn base(&self, scope: &Scope) -> String {
        // Braces in the name would end the hash tag early.
        let scope = scope.to_string().replace('%', "%25").replace('{', "%7B").replace('}', "%7D");
        format!("{}:{{{scope}}}", self.prefix)
    }

    // Keys of data have a colon after the tag; these have none, so no name can reach them.
    fn fence_key(&self, scope: &Scope) -> String {
        format!("{}#fence", self.base(scope))
    }

    fn audit_key(&self, scope: &Scope) -> String {
        format!("{}#audit", self.base(scope))
    }

    /// Installs the takeover's token; see [`Fence::barrier`].
    pub async fn barrier<C: ConnectionLike + Send>(
        &self,
        connection: &mut C,
        takeover: &Takeover,
    ) -> Result<Barrier, FenceError> {
        let budget = budget::of_takeover(takeover, &*self.clock)?;
        let mut call = BARRIER.key(self.fence_key(takeover.scope()));
        call.arg(digits(takeover.token())).arg(takeover.holder().as_str());
        let answer: Vec<Value> = within(budget, FindOut::Repeat, call.invoke_async(connection)).await?;
        stale(&answer, takeover.scope(), takeover.token())?;
        let [_, predecessor, seq, has_cursor, cursor] = answer.as_slice() else {
            return Err(strange(&answer));
        };
        let predecessor = text(predecessor)?;
        let has_cursor = text(has_cursor)? == "1";
        Ok(Barrier {
            predecessor: if predecessor.is_empty() { None } else { Some(to_token(&predecessor)?) },
            seq: text(seq)?.parse().map_err(FenceError::refused)?,
            cursor: has_cursor.then(|| bytes(cursor).map(Cursor::from)).transpose()?,
        })
    }

    /// Runs the commands if the token is not stale, all beside nothing else, and returns their answers.
    ///
    /// Redis does not undo: if a later command fails (a wrong type, say), the earlier ones stay, and the
    /// result is [`FenceError::Unknown`] with what happened in words.
    pub async fn write<C: ConnectionLike + Send, A: Authority>(
        &self,
        connection: &mut C,
        authority: &A,
        commands: &[Guarded],
    ) -> Result<Vec<Value>, FenceError> {
        self.run(connection, authority, commands, None).await
    }

    /// The same, and moves the cursor in the same step.
    pub async fn write_and_advance<C: ConnectionLike + Send, A: Authority>(
        &self,
        connection: &mut C,
        authority: &A,
        commands: &[Guarded],
        cursor: Cursor,
    ) -> Result<Vec<Value>, FenceError> {
        self.run(connection, authority, commands, Some(cursor)).await
    }

    async fn run<C: ConnectionLike + Send, A: Authority>(
        &self,
        connection: &mut C,
        authority: &A,
        commands: &[Guarded],
        cursor: Option<Cursor>,
    ) -> Result<Vec<Value>, FenceError> {
        let budget = budget::of(authority, &*self.clock)?;
        let mut call = WRITE.key(self.fence_key(authority.scope()));
        for key in commands.iter().flat_map(|command| &command.keys) {
            call.key(key);
        }
        call.arg(digits(authority.token())).arg(if cursor.is_some() { "1" } else { "0" });
        call.arg(cursor.as_ref().map_or(&[][..], Cursor::as_bytes));
        for Guarded { command, .. } in commands {
            call.arg(command.args_iter().len());
            for word in command.args_iter() {
                match word {
                    Arg::Simple(word) => call.arg(word),
                    // A cursor of SCAN: reading in steps has no place in one atomic step.
                    _ => return Err(FenceError::refused("a scan cannot be guarded")),
                };
            }
        }
        let mut answer: Vec<Value> = within(budget, FindOut::ReadBack, call.invoke_async(connection)).await?;
        stale(&answer, authority.scope(), authority.token())?;
        match answer.as_slice() {
            [first, ..] if text(first)? == "ok" => Ok(answer.split_off(1)),
            [first, Value::Int(number), message] if text(first)? == "failed" => {
                let message = format!("command {number} of {} failed: {}", commands.len(), text(message)?);
                Err(match number {
                    1 => FenceError::refused(message),
                    _ => FenceError::unknown(FindOut::ReadBack, message + "; those before it are done"),
                })
            }
            _ => Err(strange(&answer)),
        }
    }

    /// What the fence remembers of a scope.
    pub async fn mark<C: ConnectionLike + Send>(
        &self,
        connection: &mut C,
        scope: &Scope,
    ) -> Result<Option<FenceMark>, FenceError> {
        let mut call = cmd("HMGET");
        call.arg(self.fence_key(scope)).arg(&["token", "holder", "seq", "cursor"]);
        let (token, holder, seq, cursor): (Option<String>, Option<String>, Option<u64>, Option<Vec<u8>>) =
            within(None, FindOut::Repeat, call.query_async(connection)).await?;
        let Some(token) = token else { return Ok(None) };
        Ok(Some(FenceMark {
            token: to_token(&token)?,
            holder: holder.and_then(|name| name.parse().ok()),
            seq: seq.unwrap_or(0),
            cursor: cursor.map(Cursor::from),
        }))
    }

    /// Lowers a poisoned mark, audited in a list beside the fence; see [`Fence::repair`].
    pub async fn repair<C: ConnectionLike + Send>(
        &self,
        connection: &mut C,
        scope: &Scope,
        to: Token,
        by: &HolderName,
        reason: &str,
    ) -> Result<FenceMark, FenceError> {
        let mut call = REPAIR.key(self.fence_key(scope));
        call.key(self.audit_key(scope)).arg(digits(to));
        call.arg(format!("at {} by {by}: {reason}", self.clock.wall().as_unix_millis()));
        let answer: Vec<Value> = within(None, FindOut::Repeat, call.invoke_async(connection)).await?;
        if answer.first().map(text).transpose()?.as_deref() == Some("missing") {
            return Err(FenceError::refused(format!("no token was ever seen for {scope}")));
        }
        self.mark(connection, scope).await?.ok_or_else(|| FenceError::refused("the mark has vanished"))
    }

    /// What this server could lose, in words, as far as it lets us ask: nothing found means that a crash of
    /// the primary alone loses no acknowledged mark. A failover to a replica still can.
    pub async fn weaknesses<C: ConnectionLike + Send>(
        &self,
        connection: &mut C,
    ) -> Result<Vec<String>, FenceError> {
        let mut found = Vec::new();
        let ask = ["maxmemory-policy", "appendonly", "appendfsync"];
        for (setting, safe, risk) in [
            (
                ask[0],
                &["noeviction", "volatile-lru", "volatile-lfu", "volatile-ttl", "volatile-random"][..],
                "fence marks can be evicted",
            ),
            (ask[1], &["yes"][..], "a crash loses everything since the last snapshot, marks included"),
            (ask[2], &["always"][..], "a crash loses up to a second of writes, marks included"),
        ] {
            let mut call = cmd("CONFIG");
            call.arg("GET").arg(setting);
            let (_, value): (String, String) =
                within(None, FindOut::Repeat, call.query_async(connection)).await?;
            if !safe.contains(&value.as_str()) {
                found.push(format!("{setting} is {value}: {risk}"));
            }
        }
        Ok(found)
    }

    /// The fence with a connection of its own, to stand in a list of [`Fence`]s.
    pub fn over(self, connection: MultiplexedConnection) -> RedisFence {
        RedisFence { fence: self, connection }
    }
}

/// [`Redis`] with a connection of its own.
#[derive(Clone)]
pub struct RedisFence {
    fence: Redis,
    connection: MultiplexedConnection,
}

impl Fence for RedisFence {
    fn barrier<'a>(&'a self, takeover: &'a Takeover) -> FenceFuture<'a, Barrier> {
        let mut connection = self.connection.clone();
        Box::pin(async move { self.fence.barrier(&mut connection, takeover).await })
    }

    fn mark<'a>(&'a self, scope: &'a Scope) -> FenceFuture<'a, Option<FenceMark>> {
        let mut connection = self.connection.clone();
        Box::pin(async move { self.fence.mark(&mut connection, scope).await })
    }

    fn repair<'a>(
        &'a self,
        scope: &'a Scope,
        to: Token,
        by: &'a HolderName,
        reason: &'a str,
    ) -> FenceFuture<'a, FenceMark> {
        let mut connection = self.connection.clone();
        Box::pin(async move { self.fence.repair(&mut connection, scope, to, by, reason).await })
    }
}

/// Sixteen digits hold every token, so that text compares as the numbers do.
fn digits(token: Token) -> String {
    format!("{:016}", token.get())
}

fn to_token(digits: &str) -> Result<Token, FenceError> {
    let number: u64 = digits.parse().map_err(FenceError::refused)?;
    Token::try_from(number).map_err(FenceError::refused)
}

fn bytes(value: &Value) -> Result<Vec<u8>, FenceError> {
    redis::from_redis_value_ref(value).map_err(FenceError::refused)
}

fn text(value: &Value) -> Result<String, FenceError> {
    redis::from_redis_value_ref(value).map_err(FenceError::refused)
}

fn strange(answer: &[Value]) -> FenceError {
    FenceError::unknown(FindOut::ReadBack, format!("the script answered {answer:?}"))
}

fn stale(answer: &[Value], scope: &Scope, presented: Token) -> Result<(), FenceError> {
    match answer {
        [first, seen] if text(first)? == "stale" => {
            Err(FenceError::Stale(Stale { scope: scope.clone(), presented, seen: to_token(&text(seen)?)? }))
        }
        _ => Ok(()),
    }
}

async fn within<T>(
    budget: Option<Duration>,
    find_out: FindOut,
    call: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, FenceError> {
    match tokio::time::timeout(budget.unwrap_or(UNSTATED), call).await {
        Ok(answer) => answer.map_err(|error| classify(error, find_out)),
        Err(elapsed) => Err(FenceError::unknown(find_out, elapsed)),
    }
}

fn classify(error: RedisError, find_out: FindOut) -> FenceError {
    use ServerErrorKind::{Ask, BusyLoading, ClusterDown, MasterDown, Moved, NoScript, ReadOnly, TryAgain};
    match error.kind() {
        ErrorKind::Server(
            Ask | BusyLoading | ClusterDown | MasterDown | Moved | NoScript | ReadOnly | TryAgain,
        ) => FenceError::unavailable(error),
        ErrorKind::Extension if error.code() == Some(MISUSE) => FenceError::refused(error),
        // BUSY, OOM, NOREPLICAS, MISCONF: the server will not run scripts or writes just now.
        ErrorKind::Extension => FenceError::unavailable(error),
        ErrorKind::Server(_) => FenceError::refused(error),
        _ if error.is_connection_refusal() => FenceError::unavailable(error),
        _ => FenceError::unknown(find_out, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_scope_share_one_tag_and_no_key_is_a_fence() {
        let fence = Redis::new("a{b}");
        let scope: Scope = "r/}{x%7B#3".parse().unwrap();
        let tag = |key: &str| key[key.find('{').unwrap()..=key.find('}').unwrap()].to_owned();
        assert_eq!(tag(&fence.key(&scope, "k{q}")), tag(&fence.fence_key(&scope)));
        assert_eq!(tag(&fence.fence_key(&scope)), "{r/%7D%7Bx%257B#3}");
        assert_ne!(fence.key(&scope, "fence"), fence.fence_key(&scope));
    }
}
