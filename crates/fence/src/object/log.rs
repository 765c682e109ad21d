//! The log: records under consecutive numbers, each created only if its number is free. It decides by who
//! gets a number: a takeover is a record, so an older holder finds its next number taken, reads what is
//! there, and knows.
//!
//! Tokens never fall along the log (a repair excepted), because a writer only appends behind a record whose
//! token it has judged. So the last record alone tells the mark, the cursor and the next number.
//!
//! One thing could go wrong: a holder in full flight needs one request per record and a newcomer two, so the
//! newcomer could lose every race for the next number. Having lost one it *leaps*: it takes a number further
//! on, which ends the old holder's run when it gets there, fills what is left open below, and only then puts
//! its own record behind. Whoever finds a leap fills it; a record that made it in below still counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use serde::{Deserialize, Serialize};
use tenure_clock::{Clock, SystemClock};
use tenure_core::{HolderName, Scope, Token};

use super::{classify, hex, key_of, random, unhex, unread, within};
use crate::budget;
use crate::rule::judge;
use crate::{Authority, Barrier, Cursor, Fence, FenceError, FenceFuture, FenceMark, FindOut, Takeover};

/// A guarded log, one per scope.
#[derive(Clone)]
pub struct Log {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    clock: Arc<dyn Clock>,
    /// The last record known of each scope: saves looking, and being out of date costs only a refused PUT.
    tails: Arc<Mutex<BTreeMap<Scope, Tail>>>,
}

#[derive(Clone, Debug)]
struct Tail {
    number: u64,
    /// The last record. Of a leap, with the progress that is carried on across it.
    line: Line,
    /// Before a leap, the token that ruled; else the record's own.
    ruled: u64,
}

/// How a takeover goes about its record.
enum Arrival<'a> {
    /// An append: keep to the next number.
    Append,
    /// A takeover by this holder: leap if need be.
    Takeover(&'a HolderName),
}

/// No run of an old holder is longer than this between two looks.
const LEAP_MAX: u64 = 64;

/// One record as it is stored, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    token: u64,
    holder: Option<String>,
    /// Carried on from record to record, so that the last one has them.
    seq: u64,
    cursor: Option<String>,
    /// How a writer recognises its own success.
    attempt: String,
    /// Hexadecimal; none in the record of a takeover or repair.
    body: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    repair: Option<String>,
    /// Put ahead of the log, or between it and what was put ahead; carries nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    leap: bool,
}

impl Line {
    fn new(token: Token, attempt: &str) -> Line {
        let attempt = attempt.to_owned();
        Line {
            token: token.get(),
            holder: None,
            seq: 0,
            cursor: None,
            attempt,
            body: None,
            repair: None,
            leap: false,
        }
    }
}

/// One record of the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number in the log; numbers of takeovers are left out, so they have gaps.
    pub number: u64,
    /// Under which token it was written.
    pub token: Token,
    /// What was written.
    pub body: Vec<u8>,
}

impl Log {
    /// Guards the logs beneath `prefix`. Run [`probe`](super::probe) once against a store that is new to you.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str) -> Log {
        Log::with_clock(store, prefix, Arc::new(SystemClock))
    }

    /// The same with another clock.
    pub fn with_clock(store: Arc<dyn ObjectStore>, prefix: &str, clock: Arc<dyn Clock>) -> Log {
        Log { store, prefix: prefix.trim_matches('/').to_owned(), clock, tails: Arc::default() }
    }

    /// Installs the takeover's token by a record of its own; see [`Fence::barrier`].
    pub async fn barrier(&self, takeover: &Takeover) -> Result<Barrier, FenceError> {
        let budget = budget::of_takeover(takeover, &*self.clock)?;
        let (scope, token) = (takeover.scope(), takeover.token());
        let arrival = Arrival::Takeover(takeover.holder());
        let appending = async {
            // Always from the store, never from memory: the barrier promises what is there now.
            self.forget(scope);
            self.append_line(scope, token, FindOut::Repeat, arrival, || Ok(()), |_| {}).await
        };
        let (_, before) = within(budget, FindOut::Repeat, appending).await?;
        let Some(before) = before else { return Ok(Barrier { predecessor: None, seq: 0, cursor: None }) };
        let mark = to_mark(&before.line)?;
        let predecessor = Token::try_from(before.ruled).map_err(FenceError::refused)?;
        Ok(Barrier { predecessor: Some(predecessor), seq: mark.seq, cursor: mark.cursor })
    }

    /// Appends a record and returns its number.
    pub async fn append<A: Authority>(&self, authority: &A, body: &[u8]) -> Result<u64, FenceError> {
        self.append_with(authority, body, None).await
    }

    /// The same, and moves the cursor in the same step.
    pub async fn append_and_advance<A: Authority>(
        &self,
        authority: &A,
        body: &[u8],
        cursor: Cursor,
    ) -> Result<u64, FenceError> {
        self.append_with(authority, body, Some(cursor)).await
    }

    async fn append_with<A: Authority>(
        &self,
        authority: &A,
        body: &[u8],
        cursor: Option<Cursor>,
    ) -> Result<u64, FenceError> {
        let budget = budget::of(authority, &*self.clock)?;
        let in_time = || budget::of(authority, &*self.clock).map(drop);
        let fill = |line: &mut Line| {
            line.body = Some(hex(body));
            if let Some(cursor) = &cursor {
                line.seq += 1;
                line.cursor = Some(hex(cursor.as_bytes()));
            }
        };
        let (scope, token) = (authority.scope(), authority.token());
        let appending = self.append_line(scope, token, FindOut::ReadBack, Arrival::Append, in_time, fill);
        Ok(within(budget, FindOut::ReadBack, appending).await?.0)
    }

    /// The application's records from `from` on. Records whose token is below one that came before are left
    /// out: only a writer that ignores the rules can have put them there.
    pub async fn read(&self, scope: &Scope, from: u64) -> Result<Vec<Record>, FenceError> {
        let reading = async {
            let mut records = Vec::new();
            let mut highest = 0;
            for number in 1.. {
                let Some(line) = self.line(scope, number).await? else { break };
                if line.token < highest && line.repair.is_none() {
                    continue;
                }
                highest = line.token;
                if let (Some(body), true) = (&line.body, number >= from && !line.leap) {
                    let body =
                        unhex(body).ok_or_else(|| FenceError::refused("a body that is not hexadecimal"))?;
                    let token = Token::try_from(line.token).map_err(FenceError::refused)?;
                    records.push(Record { number, token, body });
                }
            }
            Ok(records)
        };
        within(None, FindOut::Repeat, reading).await
    }

    /// What the fence remembers of a scope.
    pub async fn mark(&self, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        self.forget(scope);
        let last = within(None, FindOut::Repeat, self.tail(scope)).await?;
        last.map(|last| to_mark(&last.line)).transpose()
    }

    /// Lowers a poisoned mark by a record that says so; see [`Fence::repair`].
    pub async fn repair(
        &self,
        scope: &Scope,
        to: Token,
        by: &HolderName,
        reason: &str,
    ) -> Result<FenceMark, FenceError> {
        let repairing = async {
            self.forget(scope);
            let Some(last) = self.tail(scope).await? else {
                return Err(FenceError::refused(format!("no token was ever seen for {scope}")));
            };
            let at = self.clock.wall().as_unix_millis();
            let mut line = last.line;
            let why = format!("{at} {} -> {to} by {by}: {reason}", line.token);
            (line.token, line.holder, line.repair, line.body) = (to.get(), None, Some(why), None);
            (line.attempt, line.leap) = (random()?, false);
            if self.create(scope, last.number + 1, &line, FindOut::Repeat).await? {
                self.remember(scope, last.number + 1, &line);
                return to_mark(&line);
            }
            Err(FenceError::unavailable("somebody is writing; stop all holders before a repair"))
        };
        within(None, FindOut::Repeat, repairing).await
    }

    /// Appends behind the last record, as often as another gets its number, as long as the token is not
    /// stale. Returns the record's number and what was last before it.
    async fn append_line(
        &self,
        scope: &Scope,
        token: Token,
        find_out: FindOut,
        arrival: Arrival<'_>,
        in_time: impl Fn() -> Result<(), FenceError> + Send,
        fill: impl Fn(&mut Line) + Send,
    ) -> Result<(u64, Option<Tail>), FenceError> {
        let attempt = random()?;
        let mut leap = 0;
        loop {
            let last = self.tail(scope).await?;
            if let Some(own) = last.as_ref().filter(|last| last.line.attempt == attempt && !last.line.leap) {
                return Ok((own.number, last)); // an earlier round of this very call was done after all
            }
            let seen = last.as_ref().map(|last| Token::try_from(last.line.token)).transpose();
            judge(scope, token, seen.map_err(FenceError::refused)?)?;
            let mut line = Line::new(token, &attempt);
            if let Some(last) = &last {
                (line.seq, line.cursor) = (last.line.seq, last.line.cursor.clone());
                if last.line.token == line.token {
                    line.holder = last.line.holder.clone();
                }
            }
            if let Arrival::Takeover(holder) = arrival {
                let holder = Some(holder.to_string());
                if let Some(there) = &last
                    && !there.line.leap
                    && (there.line.token, &there.line.holder) == (token.get(), &holder)
                {
                    return Ok((there.number, last)); // a repeated barrier finds itself
                }
                line.holder = holder;
            }
            fill(&mut line);
            let number = last.as_ref().map_or(0, |last| last.number) + 1 + leap;
            line.leap = leap > 0;
            in_time()?;
            if self.create(scope, number, &line, find_out).await? {
                if leap == 0 {
                    self.remember(scope, number, &line);
                    return Ok((number, last));
                }
                leap = 0; // the way is barred; fill what is open below, then come in behind
                self.forget(scope);
                continue;
            }
            // The number is taken. Read what is there: our own record, a fellow writer's, or another
            // holder's.
            match self.line(scope, number).await? {
                Some(there) if there.attempt == attempt && !there.leap => {
                    self.remember(scope, number, &line);
                    return Ok((number, last));
                }
                Some(there) if leap == 0 && !there.leap => self.remember(scope, number, &there),
                _ => self.forget(scope), // a leap, or the store wanted the request again: look at everything
            }
            if matches!(arrival, Arrival::Takeover(_)) {
                leap = (leap * 2).clamp(1, LEAP_MAX);
            }
        }
    }

    /// The last record: from memory, or by listing. What a leap has left open is filled on the way.
    async fn tail(&self, scope: &Scope) -> Result<Option<Tail>, FenceError> {
        if let Some(tail) = self.tails.lock().unwrap_or_else(PoisonError::into_inner).get(scope) {
            return Ok(Some(tail.clone()));
        }
        let folder = Path::from(self.folder(scope)?);
        let listed = self.store.list_with_delimiter(Some(&folder)).await.map_err(unread)?;
        let numbers: BTreeSet<u64> =
            listed.objects.iter().filter_map(|object| object.location.filename()?.parse().ok()).collect();
        let Some(&number) = numbers.last() else { return Ok(None) };
        let mut line = self.needed(scope, number).await?;
        if !line.leap {
            self.remember(scope, number, &line);
            return Ok(Some(Tail { number, ruled: line.token, line }));
        }
        for open in (1..number).filter(|number| !numbers.contains(number)) {
            let mut filler =
                Line::new(Token::try_from(line.token).map_err(FenceError::refused)?, &line.attempt);
            filler.leap = true;
            self.create(scope, open, &filler, FindOut::Repeat).await?; // taken by now: as good as filled
        }
        // Nothing can come in below any more: now what the old holders left can be read.
        let mut ruled = line.token;
        for below in (1..number).rev() {
            let before = self.needed(scope, below).await?;
            // A newcomer may have leapt past a newer one: whichever came first, the higher token rules.
            if before.token > line.token {
                (line.token, line.holder) = (before.token, before.holder);
            }
            if !before.leap {
                (line.seq, line.cursor, ruled) = (before.seq, before.cursor, before.token);
                break;
            }
        }
        Ok(Some(Tail { number, line, ruled }))
    }

    async fn needed(&self, scope: &Scope, number: u64) -> Result<Line, FenceError> {
        let line = self.line(scope, number).await?;
        line.ok_or_else(|| FenceError::refused(format!("record {number} of {scope} was there and is gone")))
    }

    async fn line(&self, scope: &Scope, number: u64) -> Result<Option<Line>, FenceError> {
        let path = self.path(scope, number)?;
        let got = match self.store.get(&path).await {
            Ok(got) => got,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(unread(error)),
        };
        let bytes = got.bytes().await.map_err(unread)?;
        serde_json::from_slice(&bytes).map(Some).map_err(FenceError::refused)
    }

    /// Puts a record under a number; `false` if the number is taken.
    async fn create(
        &self,
        scope: &Scope,
        number: u64,
        line: &Line,
        find_out: FindOut,
    ) -> Result<bool, FenceError> {
        let bytes = serde_json::to_vec(line).map_err(FenceError::refused)?;
        let path = self.path(scope, number)?;
        match self.store.put_opts(&path, bytes.into(), PutOptions::from(PutMode::Create)).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(classify(error, find_out)),
        }
    }

    fn folder(&self, scope: &Scope) -> Result<String, FenceError> {
        Ok(format!("{}/=log", key_of(&self.prefix, scope)?))
    }

    fn path(&self, scope: &Scope, number: u64) -> Result<Path, FenceError> {
        Ok(Path::from(format!("{}/{number:020}", self.folder(scope)?)))
    }

    fn remember(&self, scope: &Scope, number: u64, line: &Line) {
        let mut tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        // Fellow writers report in any order; only a later record is new.
        if tails.get(scope).is_none_or(|known| known.number < number) {
            tails.insert(scope.clone(), Tail { number, line: line.clone(), ruled: line.token });
        }
    }

    fn forget(&self, scope: &Scope) {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner).remove(scope);
    }
}

impl Fence for Log {
    fn barrier<'a>(&'a self, takeover: &'a Takeover) -> FenceFuture<'a, Barrier> {
        Box::pin(Log::barrier(self, takeover))
    }

    fn mark<'a>(&'a self, scope: &'a Scope) -> FenceFuture<'a, Option<FenceMark>> {
        Box::pin(Log::mark(self, scope))
    }

    fn repair<'a>(
        &'a self,
        scope: &'a Scope,
        to: Token,
        by: &'a HolderName,
        reason: &'a str,
    ) -> FenceFuture<'a, FenceMark> {
        Box::pin(Log::repair(self, scope, to, by, reason))
    }
}

fn to_mark(line: &Line) -> Result<FenceMark, FenceError> {
    let cursor = match &line.cursor {
        None => None,
        Some(text) => {
            let bytes = unhex(text).ok_or_else(|| FenceError::refused("a cursor that is not hexadecimal"))?;
            Some(Cursor::from(bytes))
        }
    };
    let token = Token::try_from(line.token).map_err(FenceError::refused)?;
    let holder = line.holder.as_ref().and_then(|name| name.parse().ok());
    Ok(FenceMark { token, holder, seq: line.seq, cursor })
}
