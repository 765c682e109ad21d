//! The bodies of frames between replicas: our own encoding of the engine's messages.

use crate::NodeId;
use crate::engine::{Types, from_entry, from_log_id, from_vote, to_entry, to_log_id, to_vote};
use crate::wal::{EntryKind, LogEntry, LogId, Vote};
use bytes::{Buf, BufMut, Bytes, TryGetError};
use openraft::alias::{LogIdOf, VoteOf};
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderRequest, VoteRequest,
    VoteResponse,
};
use std::io;
use tenure_tls::KeyHash;

/// What a call asks for. The numbers are on the wire.
pub(crate) mod kind {
    /// Append, answered in order with others.
    pub const APPEND: u8 = 1;
    /// Append without entries, answered as soon as possible.
    pub const HEARTBEAT: u8 = 2;
    pub const VOTE: u8 = 3;
    pub const PRE_VOTE: u8 = 4;
    pub const TRANSFER: u8 = 5;
    pub const SNAPSHOT_BEGIN: u8 = 6;
    pub const SNAPSHOT_PIECE: u8 = 7;
    pub const SNAPSHOT_END: u8 = 8;
    pub const FORWARD: u8 = 9;
    /// Answered at once, with nothing.
    pub const PING: u8 = 10;
    /// Whether the one that is asked reaches the port of the one that asks: answered with one byte, 1 or 0,
    /// and the vote of the one that answers. A peer that does not know it answers `FAILED`.
    pub const REACH: u8 = 11;
    /// Whether the one that is asked has a node in its membership, by number and identity: answered with one byte, 1 or
    /// 0. A peer that does not know it answers `FAILED`.
    pub const KNOWS: u8 = 12;
    /// The answer to any of these.
    pub const ANSWER: u8 = 64;
    /// There is no answer; the body says why.
    pub const FAILED: u8 = 65;
}

type Read<T> = Result<T, TryGetError>;

/// Reads a whole body with `read`.
fn whole<T>(mut input: Bytes, read: impl FnOnce(&mut Bytes) -> io::Result<T>) -> io::Result<T> {
    let value = read(&mut input)?;
    match input.is_empty() {
        true => Ok(value),
        false => Err(malformed("there are bytes behind it")),
    }
}

fn malformed(what: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a malformed message: {}", what.to_string()))
}

fn put_vote(output: &mut Vec<u8>, vote: &VoteOf<Types>) {
    let Vote { term, node, committed } = from_vote(vote);
    output.put_u64_le(term);
    output.put_u64_le(node);
    output.put_u8(committed.into());
}

fn get_vote(input: &mut Bytes) -> Read<VoteOf<Types>> {
    let (term, node) = (input.try_get_u64_le()?, input.try_get_u64_le()?);
    Ok(to_vote(Vote { term, node, committed: input.try_get_u8()? != 0 }))
}

fn put_id(output: &mut Vec<u8>, id: Option<&LogIdOf<Types>>) {
    let LogId { term, index } = id.map_or(LogId { term: 0, index: 0 }, from_log_id);
    output.put_u8(id.is_some().into());
    output.put_u64_le(term);
    output.put_u64_le(index);
}

fn get_id(input: &mut Bytes) -> Read<Option<LogIdOf<Types>>> {
    let some = input.try_get_u8()? != 0;
    let (term, index) = (input.try_get_u64_le()?, input.try_get_u64_le()?);
    Ok(some.then(|| to_log_id(LogId { term, index })))
}

pub(crate) fn encode_append(request: AppendEntriesRequest<Types>) -> Bytes {
    let mut output = Vec::new();
    put_vote(&mut output, &request.vote);
    put_id(&mut output, request.prev_log_id.as_ref());
    put_id(&mut output, request.leader_commit.as_ref());
    output.put_u32_le(request.entries.len() as u32);
    for entry in request.entries {
        let LogEntry { id, kind, body } = from_entry(entry);
        output.put_u64_le(id.term);
        output.put_u64_le(id.index);
        output.put_u8(kind as u8);
        output.put_u32_le(u32::try_from(body.len()).expect("an entry must be smaller than 4 GiB"));
        output.extend_from_slice(&body);
    }
    output.into()
}

pub(crate) fn decode_append(input: Bytes) -> io::Result<AppendEntriesRequest<Types>> {
    whole(input, |input| {
        let vote = get_vote(input).map_err(malformed)?;
        let prev_log_id = get_id(input).map_err(malformed)?;
        let leader_commit = get_id(input).map_err(malformed)?;
        let mut entries = Vec::new();
        for _ in 0..input.try_get_u32_le().map_err(malformed)? {
            entries.push(to_entry(get_entry(input)?)?);
        }
        Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
    })
}

fn get_entry(input: &mut Bytes) -> io::Result<LogEntry> {
    let mut header = || -> Read<_> {
        let id = LogId { term: input.try_get_u64_le()?, index: input.try_get_u64_le()? };
        Ok((id, input.try_get_u8()?, input.try_get_u32_le()? as usize))
    };
    let (id, kind, length) = header().map_err(malformed)?;
    let kind = EntryKind::from_number(kind).ok_or_else(|| malformed("an entry of an unknown kind"))?;
    if length > input.len() {
        return Err(malformed("an entry is cut short"));
    }
    Ok(LogEntry { id, kind, body: input.split_to(length) })
}

pub(crate) fn encode_appended(result: &StreamAppendResult<Types>) -> Bytes {
    let mut output = Vec::new();
    match result {
        Ok(id) => {
            output.put_u8(0);
            put_id(&mut output, id.as_ref());
        }
        Err(StreamAppendError::Conflict(id)) => {
            output.put_u8(1);
            put_id(&mut output, Some(id));
        }
        Err(StreamAppendError::HigherVote(vote)) => {
            output.put_u8(2);
            put_vote(&mut output, vote);
        }
    }
    output.into()
}

pub(crate) fn decode_appended(input: Bytes) -> io::Result<StreamAppendResult<Types>> {
    whole(input, |input| match input.try_get_u8().map_err(malformed)? {
        0 => Ok(Ok(get_id(input).map_err(malformed)?)),
        1 => {
            let id = get_id(input).map_err(malformed)?;
            Ok(Err(StreamAppendError::Conflict(id.ok_or_else(|| malformed("a conflict without a place"))?)))
        }
        2 => Ok(Err(StreamAppendError::HigherVote(get_vote(input).map_err(malformed)?))),
        other => Err(malformed(format!("an unknown outcome {other}"))),
    })
}

pub(crate) fn encode_vote(request: &VoteRequest<Types>) -> Bytes {
    let mut output = Vec::new();
    put_vote(&mut output, &request.vote);
    put_id(&mut output, request.last_log_id.as_ref());
    output.put_u8(request.leadership_transfer.into());
    output.into()
}

pub(crate) fn decode_vote(input: Bytes) -> io::Result<VoteRequest<Types>> {
    whole(input, |input| {
        let mut read = || -> Read<_> {
            let mut request = VoteRequest::new(get_vote(input)?, get_id(input)?);
            request.leadership_transfer = input.try_get_u8()? != 0;
            Ok(request)
        };
        read().map_err(malformed)
    })
}

pub(crate) fn encode_voted(response: &VoteResponse<Types>) -> Bytes {
    let mut output = Vec::new();
    put_vote(&mut output, &response.vote);
    put_id(&mut output, response.last_log_id.as_ref());
    output.put_u8(response.vote_granted.into());
    output.into()
}

pub(crate) fn decode_voted(input: Bytes) -> io::Result<VoteResponse<Types>> {
    whole(input, |input| {
        let mut read = || -> Read<_> {
            let (vote, last_log_id) = (get_vote(input)?, get_id(input)?);
            Ok(VoteResponse::new(vote, last_log_id, input.try_get_u8()? != 0))
        };
        read().map_err(malformed)
    })
}

pub(crate) fn encode_transfer(request: &TransferLeaderRequest<Types>) -> Bytes {
    let mut output = Vec::new();
    put_vote(&mut output, request.from_leader());
    output.put_u64_le(*request.to_node_id());
    put_id(&mut output, request.last_log_id());
    output.into()
}

pub(crate) fn decode_transfer(input: Bytes) -> io::Result<TransferLeaderRequest<Types>> {
    whole(input, |input| {
        let mut read = || -> Read<_> {
            let (from, to) = (get_vote(input)?, input.try_get_u64_le()?);
            Ok(TransferLeaderRequest::new(from, to, get_id(input)?))
        };
        read().map_err(malformed)
    })
}

/// A bare vote: how a snapshot begins, ends and is answered.
pub(crate) fn encode_bare_vote(vote: &VoteOf<Types>) -> Bytes {
    let mut output = Vec::new();
    put_vote(&mut output, vote);
    output.into()
}

pub(crate) fn decode_bare_vote(input: Bytes) -> io::Result<VoteOf<Types>> {
    whole(input, |input| get_vote(input).map_err(malformed))
}

/// Who is asked about: its number and its identity.
pub(crate) fn encode_knows(node: NodeId, identity: u128, key: Option<KeyHash>) -> Bytes {
    let mut output = Vec::with_capacity(56);
    output.put_u64_le(node);
    output.put_u128_le(identity);
    // Asked of members that speak TLS as well: all of them read it.
    output.extend(key.iter().flat_map(|key| key.0));
    output.into()
}

pub(crate) fn decode_knows(input: Bytes) -> io::Result<(NodeId, u128, Option<KeyHash>)> {
    whole(input, |input| {
        let mut read = || -> Read<_> {
            let (node, identity) = (input.try_get_u64_le()?, input.try_get_u128_le()?);
            let mut key = None;
            if !input.is_empty() {
                let mut hash = [0; 32];
                input.try_copy_to_slice(&mut hash)?;
                key = Some(KeyHash(hash));
            }
            Ok((node, identity, key))
        };
        read().map_err(malformed)
    })
}

/// A piece of a snapshot: where it belongs, and its bytes.
pub(crate) fn encode_piece(offset: u64, bytes: &[u8]) -> Bytes {
    let mut output = Vec::with_capacity(8 + bytes.len());
    output.put_u64_le(offset);
    output.extend_from_slice(bytes);
    output.into()
}

pub(crate) fn decode_piece(mut input: Bytes) -> io::Result<(u64, Bytes)> {
    let offset = input.try_get_u64_le().map_err(malformed)?;
    Ok((offset, input))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(term: u64, index: u64) -> LogIdOf<Types> {
        to_log_id(LogId { term, index })
    }

    fn vote() -> VoteOf<Types> {
        to_vote(Vote { term: 9, node: 3, committed: true })
    }

    #[test]
    fn an_append_arrives_as_it_was_sent_and_cut_short_is_refused() {
        let entry = |index, kind, body: &'static [u8]| {
            to_entry(LogEntry { id: LogId { term: 9, index }, kind, body: Bytes::from_static(body) }).unwrap()
        };
        let request = AppendEntriesRequest {
            vote: vote(),
            prev_log_id: Some(id(8, 4)),
            entries: vec![entry(5, EntryKind::Blank, b""), entry(6, EntryKind::Normal, b"grant")],
            leader_commit: None,
        };
        let bytes = encode_append(request.clone());
        assert_eq!(format!("{:?}", decode_append(bytes.clone()).unwrap()), format!("{request:?}"));
        for length in 0..bytes.len() {
            assert!(decode_append(bytes.slice(..length)).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn answers_arrive_as_they_were_sent() {
        let results = [
            Ok(None),
            Ok(Some(id(3, 4))),
            Err(StreamAppendError::Conflict(id(3, 4))),
            Err(StreamAppendError::HigherVote(vote())),
        ];
        for result in results {
            assert_eq!(decode_appended(encode_appended(&result)).unwrap(), result);
        }
        let mut request = VoteRequest::new(vote(), Some(id(1, 2)));
        request.leadership_transfer = true;
        assert_eq!(decode_vote(encode_vote(&request)).unwrap(), request);
        let response = VoteResponse::<Types>::new(vote(), None, true);
        assert_eq!(decode_voted(encode_voted(&response)).unwrap(), response);
        let transfer = TransferLeaderRequest::new(vote(), 7, Some(id(1, 2)));
        assert_eq!(decode_transfer(encode_transfer(&transfer)).unwrap(), transfer);
        assert_eq!(decode_bare_vote(encode_bare_vote(&vote())).unwrap(), vote());
        for key in [None, Some(KeyHash([9; 32]))] {
            assert_eq!(decode_knows(encode_knows(7, 1 << 100, key)).unwrap(), (7, 1 << 100, key));
        }
        assert_eq!(decode_piece(encode_piece(5, b"abc")).unwrap(), (5, Bytes::from_static(b"abc")));
    }
}
