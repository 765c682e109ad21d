//! The manifest: one small object per scope that names the data objects which count. It decides by
//! compare-and-set: read, judge the token, replace only what was read.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};
use serde::{Deserialize, Serialize};
use tenure_clock::{Clock, SystemClock};
use tenure_core::{HolderName, Scope, Token};

use super::{classify, hex, key_of, random, unhex, unread, within};
use crate::budget;
use crate::rule::{Standing, judge};
use crate::{Authority, Barrier, Cursor, Fence, FenceError, FenceFuture, FenceMark, FindOut, Takeover};

/// Guarded objects, visible through a manifest.
#[derive(Clone)]
pub struct Manifest {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    clock: Arc<dyn Clock>,
}

/// What the manifest object says, as JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Body {
    token: u64,
    holder: Option<String>,
    seq: u64,
    /// Hexadecimal.
    cursor: Option<String>,
    /// Name to key of a data object.
    entries: BTreeMap<String, String>,
    /// The last attempts that were made final, newest last: how a writer recognises its own success.
    attempts: Vec<String>,
    /// What operators did past the rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    audit: Vec<String>,
}

/// More than one holder's writers can be on their way at once, and each looks back at most this far.
const ATTEMPTS_MAX: usize = 64;

/// What to do with a manifest that was read, and whether the token is new to it.
enum Step {
    Write,
    Leave,
}

impl Manifest {
    /// Guards the objects beneath `prefix`. Run [`probe`](super::probe) once against a store that is new to
    /// you.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str) -> Manifest {
        Manifest::with_clock(store, prefix, Arc::new(SystemClock))
    }

    /// The same with another clock.
    pub fn with_clock(store: Arc<dyn ObjectStore>, prefix: &str, clock: Arc<dyn Clock>) -> Manifest {
        Manifest { store, prefix: prefix.trim_matches('/').to_owned(), clock }
    }

    /// Installs the takeover's token; see [`Fence::barrier`].
    pub async fn barrier(&self, takeover: &Takeover) -> Result<Barrier, FenceError> {
        let budget = budget::of_takeover(takeover, &*self.clock)?;
        let (scope, token) = (takeover.scope(), takeover.token());
        let mut found = Barrier { predecessor: None, seq: 0, cursor: None };
        let replacing = self.replace(
            scope,
            FindOut::Repeat,
            || Ok(()),
            |body| {
                let seen = seen(body)?;
                judge(scope, token, seen)?;
                found = Barrier { predecessor: seen, seq: body.seq, cursor: cursor(body)? };
                let holder = Some(takeover.holder().to_string());
                if seen == Some(token) && body.holder == holder {
                    return Ok(Step::Leave);
                }
                (body.token, body.holder) = (token.get(), holder);
                Ok(Step::Write)
            },
        );
        within(budget, FindOut::Repeat, replacing).await?;
        Ok(found)
    }

    /// Changes what is visible, in one step. `change` is run again, on what is visible then, if another
    /// writer of the same holder was faster.
    pub async fn commit<A: Authority>(
        &self,
        authority: &A,
        change: impl FnMut(&mut BTreeMap<String, String>) + Send,
    ) -> Result<(), FenceError> {
        self.commit_with(authority, None, change).await
    }

    /// The same, and moves the cursor in the same step.
    pub async fn commit_and_advance<A: Authority>(
        &self,
        authority: &A,
        cursor: Cursor,
        change: impl FnMut(&mut BTreeMap<String, String>) + Send,
    ) -> Result<(), FenceError> {
        self.commit_with(authority, Some(cursor), change).await
    }

    async fn commit_with<A: Authority>(
        &self,
        authority: &A,
        cursor: Option<Cursor>,
        mut change: impl FnMut(&mut BTreeMap<String, String>) + Send,
    ) -> Result<(), FenceError> {
        let budget = budget::of(authority, &*self.clock)?;
        let (scope, token) = (authority.scope(), authority.token());
        // Asked before every attempt to make it final: the change itself may have taken long.
        let in_time = || budget::of(authority, &*self.clock).map(drop);
        let replacing = self.replace(scope, FindOut::ReadBack, in_time, |body| {
            if judge(scope, token, seen(body)?)? == Standing::Raises {
                (body.token, body.holder) = (token.get(), None);
            }
            change(&mut body.entries);
            if let Some(cursor) = &cursor {
                body.seq += 1;
                body.cursor = Some(hex(cursor.as_bytes()));
            }
            Ok(Step::Write)
        });
        within(budget, FindOut::ReadBack, replacing).await
    }

    /// Uploads a data object under a key that no other writer can have chosen, and returns the key. Nobody
    /// sees it until a [`commit`](Manifest::commit) names it; an orphan is only garbage.
    pub async fn upload<A: Authority>(
        &self,
        authority: &A,
        bytes: impl Into<PutPayload> + Send,
    ) -> Result<String, FenceError> {
        let budget = budget::of(authority, &*self.clock)?;
        let folder = key_of(&self.prefix, authority.scope())?;
        let key = format!("{folder}/=data/{:016}/{}", authority.token().get(), random()?);
        let (path, payload) = (Path::from(key.as_str()), bytes.into());
        let put = async { self.store.put(&path, payload).await.map_err(unread) };
        // Whatever became of it, nothing names it: not applied.
        match within(budget, FindOut::Repeat, put).await {
            Ok(_) => Ok(key),
            Err(FenceError::Unknown { cause, .. }) => Err(FenceError::Unavailable { cause }),
            Err(error) => Err(error),
        }
    }

    /// Uploads a value and makes it visible under a name.
    pub async fn put<A: Authority>(
        &self,
        authority: &A,
        name: &str,
        bytes: impl Into<PutPayload> + Send,
    ) -> Result<(), FenceError> {
        let key = self.upload(authority, bytes).await?;
        self.commit(authority, |entries| drop(entries.insert(name.to_owned(), key.clone()))).await
    }

    /// Takes a name out of sight. The data object stays, for readers that still have the old manifest.
    pub async fn delete<A: Authority>(&self, authority: &A, name: &str) -> Result<(), FenceError> {
        self.commit(authority, |entries| drop(entries.remove(name))).await
    }

    /// What is visible: names and the keys of their objects.
    pub async fn entries(&self, scope: &Scope) -> Result<BTreeMap<String, String>, FenceError> {
        Ok(within(None, FindOut::Repeat, self.read(scope))
            .await?
            .map(|(body, _)| body.entries)
            .unwrap_or_default())
    }

    /// A visible value.
    pub async fn get(&self, scope: &Scope, name: &str) -> Result<Option<Vec<u8>>, FenceError> {
        let Some(key) = self.entries(scope).await?.remove(name) else { return Ok(None) };
        let get = async {
            let got = self.store.get(&Path::from(key)).await.map_err(unread)?;
            got.bytes().await.map_err(unread)
        };
        Ok(Some(within(None, FindOut::Repeat, get).await?.to_vec()))
    }

    /// What the fence remembers of a scope.
    pub async fn mark(&self, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        let Some((body, _)) = within(None, FindOut::Repeat, self.read(scope)).await? else { return Ok(None) };
        to_mark(&body)
    }

    /// Lowers a poisoned mark, audited in the manifest itself; see [`Fence::repair`].
    pub async fn repair(
        &self,
        scope: &Scope,
        to: Token,
        by: &HolderName,
        reason: &str,
    ) -> Result<FenceMark, FenceError> {
        let mut mark = None;
        let replacing = self.replace(
            scope,
            FindOut::Repeat,
            || Ok(()),
            |body| {
                let Some(was) = seen(body)? else {
                    return Err(FenceError::refused(format!("no token was ever seen for {scope}")));
                };
                let at = self.clock.wall().as_unix_millis();
                body.audit.push(format!("{at} {was} -> {to} by {by}: {reason}"));
                (body.token, body.holder) = (to.get(), None);
                mark = to_mark(body)?;
                Ok(Step::Write)
            },
        );
        within(None, FindOut::Repeat, replacing).await?;
        mark.ok_or_else(|| FenceError::refused("the mark has vanished"))
    }

    fn path(&self, scope: &Scope) -> Result<Path, FenceError> {
        Ok(Path::from(format!("{}/=manifest", key_of(&self.prefix, scope)?)))
    }

    async fn read(&self, scope: &Scope) -> Result<Option<(Body, UpdateVersion)>, FenceError> {
        let got = match self.store.get(&self.path(scope)?).await {
            Ok(got) => got,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(unread(error)),
        };
        // Echoed, never computed: what an ETag is made of is the store's business.
        let version = UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
        let bytes = got.bytes().await.map_err(unread)?;
        Ok(Some((serde_json::from_slice(&bytes).map_err(FenceError::refused)?, version)))
    }

    /// Reads, lets `step` judge and change, and replaces what was read; again and again until nobody came
    /// between.
    async fn replace(
        &self,
        scope: &Scope,
        find_out: FindOut,
        in_time: impl Fn() -> Result<(), FenceError> + Send,
        mut step: impl FnMut(&mut Body) -> Result<Step, FenceError> + Send,
    ) -> Result<(), FenceError> {
        let path = self.path(scope)?;
        let attempt = random()?;
        loop {
            let (mut body, mode) = match self.read(scope).await? {
                Some((body, version)) => (body, PutMode::Update(version)),
                None => (Body::default(), PutMode::Create),
            };
            if body.attempts.contains(&attempt) {
                return Ok(()); // an earlier round of this very call was done after all
            }
            match step(&mut body)? {
                Step::Leave => return Ok(()),
                Step::Write => {}
            }
            body.attempts.push(attempt.clone());
            let excess = body.attempts.len().saturating_sub(ATTEMPTS_MAX);
            body.attempts.drain(..excess);
            let bytes = serde_json::to_vec(&body).map_err(FenceError::refused)?;
            in_time()?;
            match self.store.put_opts(&path, bytes.into(), PutOptions::from(mode)).await {
                Ok(_) => return Ok(()),
                // Somebody came between, or the store wants the request again: look again, judge again.
                Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(classify(error, find_out)),
            }
        }
    }
}

impl Fence for Manifest {
    fn barrier<'a>(&'a self, takeover: &'a Takeover) -> FenceFuture<'a, Barrier> {
        Box::pin(Manifest::barrier(self, takeover))
    }

    fn mark<'a>(&'a self, scope: &'a Scope) -> FenceFuture<'a, Option<FenceMark>> {
        Box::pin(Manifest::mark(self, scope))
    }

    fn repair<'a>(
        &'a self,
        scope: &'a Scope,
        to: Token,
        by: &'a HolderName,
        reason: &'a str,
    ) -> FenceFuture<'a, FenceMark> {
        Box::pin(Manifest::repair(self, scope, to, by, reason))
    }
}

/// Zero is what a manifest that was never written has.
fn seen(body: &Body) -> Result<Option<Token>, FenceError> {
    if body.token == 0 {
        return Ok(None);
    }
    Token::try_from(body.token).map(Some).map_err(FenceError::refused)
}

fn cursor(body: &Body) -> Result<Option<Cursor>, FenceError> {
    let Some(text) = &body.cursor else { return Ok(None) };
    let bytes = unhex(text).ok_or_else(|| FenceError::refused("a cursor that is not hexadecimal"))?;
    Ok(Some(Cursor::from(bytes)))
}

fn to_mark(body: &Body) -> Result<Option<FenceMark>, FenceError> {
    let Some(token) = seen(body)? else { return Ok(None) };
    let holder = body.holder.as_ref().and_then(|name| name.parse().ok());
    Ok(Some(FenceMark { token, holder, seq: body.seq, cursor: cursor(body)? }))
}
