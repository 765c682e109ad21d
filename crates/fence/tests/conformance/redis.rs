//! The suite on Redis: keys in the scope's hash slot.

use std::sync::{Arc, OnceLock};

use ::redis::aio::MultiplexedConnection;
use tenure_core::{Permit, Scope, Token};
use tenure_fence::redis::{BARRIER_LUA, Redis, WRITE_LUA, del, guarded, set};
use tenure_fence::{Barrier, Cursor, FenceEffect, FenceError, FenceMark, Takeover};

use crate::cases::{self, Gate, REASON, Subject};
use crate::support::{self, Server};

crate::conform!(Keys::start);

struct Keys {
    server: Arc<Server>,
    fence: Redis,
}

impl Keys {
    async fn start(case: &str) -> Option<Keys> {
        static SHARED: OnceLock<Option<Arc<Server>>> = OnceLock::new();
        let server = if case == "a_restart_does_not_forget_the_mark" {
            Arc::new(support::redis()?)
        } else {
            SHARED.get_or_init(|| support::redis().map(Arc::new)).clone()?
        };
        Some(Keys { server, fence: Redis::new("test") })
    }

    async fn connection(&self) -> MultiplexedConnection {
        let client = ::redis::Client::open(("127.0.0.1", self.server.port)).expect("an address");
        for _ in 0..200 {
            if let Ok(mut connection) = client.get_multiplexed_async_connection().await {
                // A server that is reading its file accepts connections before it serves them.
                let ping: Result<String, _> = ::redis::cmd("PING").query_async(&mut connection).await;
                if ping.is_ok() {
                    return connection;
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("Redis does not answer");
    }
}

impl Subject for Keys {
    async fn barrier(&self, takeover: &Takeover) -> Result<Barrier, FenceError> {
        self.fence.barrier(&mut self.connection().await, takeover).await
    }

    async fn mark(&self, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        self.fence.mark(&mut self.connection().await, scope).await
    }

    async fn repair(&self, scope: &Scope, to: Token) -> Result<FenceMark, FenceError> {
        let by = "operator".parse().expect("a name");
        self.fence.repair(&mut self.connection().await, scope, to, &by, REASON).await
    }

    async fn audit(&self, scope: &Scope) -> String {
        let mut call = ::redis::cmd("LRANGE");
        call.arg(format!("test:{{{scope}}}#audit")).arg(0).arg(-1);
        let lines: Vec<String> = call.query_async(&mut self.connection().await).await.expect("audit");
        lines.concat()
    }

    async fn put(&self, permit: &Permit, key: &str, value: &str) -> Result<(), FenceError> {
        let key = self.fence.key(permit.scope(), key);
        self.fence.write(&mut self.connection().await, permit, &[set(&key, value)]).await.map(drop)
    }

    async fn delete(&self, permit: &Permit, key: &str) -> Result<(), FenceError> {
        let key = self.fence.key(permit.scope(), key);
        self.fence.write(&mut self.connection().await, permit, &[del(&key)]).await.map(drop)
    }

    async fn put_and_advance(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        cursor: Cursor,
    ) -> Result<(), FenceError> {
        let key = self.fence.key(permit.scope(), key);
        let mut connection = self.connection().await;
        self.fence.write_and_advance(&mut connection, permit, &[set(&key, value)], cursor).await.map(drop)
    }

    /// A script cannot be frozen half-way: as far inside as a writer gets is the moment before it is sent.
    async fn put_through(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        gate: Gate,
    ) -> Result<(), FenceError> {
        gate.pass().await;
        self.put(permit, key, value).await
    }

    async fn get(&self, scope: &Scope, key: &str) -> Option<String> {
        let mut get = ::redis::cmd("GET");
        get.arg(self.fence.key(scope, key)).query_async(&mut self.connection().await).await.expect("get")
    }

    async fn restart(&mut self) -> bool {
        Arc::get_mut(&mut self.server).expect("a server of its own").crash_and_restart();
        true
    }
}

/// Redis does not undo, so a command that fails after others is not called "not applied".
#[tokio::test]
async fn a_command_that_fails_half_way_is_unknown_and_the_first_is_refused() {
    let Some(keys) = Keys::start("half").await else { return };
    let scope = cases::fresh_scope("half");
    let mut connection = keys.connection().await;
    let (one, other) = (keys.fence.key(&scope, "one"), keys.fence.key(&scope, "other"));
    let permit = cases::permit(&scope, 1);
    let push = guarded(&[&one], ::redis::cmd("LPUSH").arg(&one).arg("x").take());
    keys.fence.write(&mut connection, &permit, &[set(&one, "text")]).await.expect("set");
    let refused = keys
        .fence
        .write(&mut connection, &permit, std::slice::from_ref(&push))
        .await
        .expect_err("wrong type");
    assert_eq!(refused.effect(), FenceEffect::NotApplied, "{refused}");
    let half =
        keys.fence.write(&mut connection, &permit, &[set(&other, "1"), push]).await.expect_err("wrong type");
    assert_eq!(half.effect(), FenceEffect::Unknown, "{half}");
    assert_eq!(keys.get(&scope, "other").await.as_deref(), Some("1"));
}

/// Other languages call the scripts with text of their own. A token that is not padded sorts above every
/// padded one, so a stale `5` used to pass a mark of 42.
#[tokio::test]
async fn a_token_that_is_not_sixteen_digits_is_refused() {
    let Some(keys) = Keys::start("digits").await else { return };
    let scope = cases::fresh_scope("digits");
    let mut connection = keys.connection().await;
    let value = keys.fence.key(&scope, "value");
    let fence = format!("test:{{{scope}}}#fence");
    keys.put(&cases::permit(&scope, 42), "value", "kept").await.expect("put");
    for token in
        ["5", "", "43", "00000000000000042", "000000000000004x", "-000000000000042", "9007199254740992 "]
    {
        let mut write = ::redis::cmd("EVAL");
        write.arg(WRITE_LUA).arg(2).arg(&fence).arg(&value).arg(token).arg("0").arg("");
        write.arg(3).arg("SET").arg(&value).arg("lost");
        let mut barrier = ::redis::cmd("EVAL");
        barrier.arg(BARRIER_LUA).arg(1).arg(&fence).arg(token).arg("worker");
        for call in [write, barrier] {
            let refused = call.query_async::<::redis::Value>(&mut connection).await.expect_err("not a token");
            assert_eq!(refused.code(), Some("TN003"), "{token:?}: {refused}");
        }
    }
    assert_eq!(keys.get(&scope, "value").await.as_deref(), Some("kept"));
    assert_eq!(keys.mark(&scope).await.expect("mark").map(|mark| mark.token.get()), Some(42));
    // A mark that somebody stored like this is compared with nothing either, and can be repaired.
    let stored: i64 = ::redis::cmd("HSET")
        .arg(&fence)
        .arg("token")
        .arg("5")
        .query_async(&mut connection)
        .await
        .expect("set");
    assert_eq!(stored, 0);
    for refused in [
        keys.put(&cases::permit(&scope, 43), "value", "lost").await.expect_err("the mark is no token"),
        keys.barrier(&cases::takeover(&scope, 43)).await.map(drop).expect_err("the mark is no token"),
    ] {
        assert!(matches!(refused, FenceError::Refused { .. }), "{refused}");
    }
    keys.repair(&scope, Token::try_from(42).expect("a token")).await.expect("repair");
    keys.put(&cases::permit(&scope, 43), "value", "new").await.expect("put");
}

/// What a server could lose is asked, not assumed.
#[tokio::test]
async fn a_server_that_could_lose_a_mark_is_named() {
    let Some(keys) = Keys::start("weak").await else { return };
    let mut connection = keys.connection().await;
    assert_eq!(keys.fence.weaknesses(&mut connection).await.expect("ask"), Vec::<String>::new());
    let Some(server) = support::redis() else { return };
    let weak = Keys { server: Arc::new(server), fence: Redis::new("test") };
    let mut connection = weak.connection().await;
    for (setting, value) in [("maxmemory-policy", "allkeys-lru"), ("appendfsync", "everysec")] {
        let set: String = ::redis::cmd("CONFIG")
            .arg("SET")
            .arg(setting)
            .arg(value)
            .query_async(&mut connection)
            .await
            .expect("set");
        assert_eq!(set, "OK");
    }
    assert_eq!(weak.fence.weaknesses(&mut connection).await.expect("ask").len(), 2);
}
