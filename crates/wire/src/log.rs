//! Log entries as bytes.
//!
//! An entry is a format version, the stamp, the calendar time, how many renewals and commands follow, the
//! renewals and the commands. Renewals are most of any log, so they are packed: the step from the last
//! renewal's session number, signed, and the transmission's own number. Their order is the order of
//! arrival and stays so.
//!
//! The number of commands stands in the head, so an entry cut short between two commands is seen to be so.
//! A leader that seals batches can encode commands as they arrive and put the head before them at the end:
//! an entry is [`encode_entry_head`] followed by that many [`encode_command`]s.

use tenure_core::{ClusterTime, Command, Entry, FormatVersion, Identity, Renewal, SessionNumber, WallTime};

use crate::codec::{Coded, Output, Reader, WireError, put_signed, put_varint};
use crate::records::ATTRIBUTED;

const ENTRY: &str = "log entry";
const COMMAND: &str = "command";

/// A packed renewal has at least this many bytes: one for the step, one for the number.
pub(crate) const RENEWAL_BYTES_MIN: usize = 2;

/// Appends a whole entry, in this version.
pub fn encode_entry(version: FormatVersion, entry: &Entry, out: &mut Vec<u8>) {
    let Entry { at, wall, renewals, commands } = entry;
    encode_entry_head(version, *at, *wall, renewals, commands.len(), out);
    commands.iter().for_each(|command| encode_command(version, command, out));
}

/// Appends all of an entry but its commands: exactly `commands` of them must follow.
pub fn encode_entry_head(
    version: FormatVersion,
    at: ClusterTime,
    wall: WallTime,
    renewals: &[Renewal],
    commands: usize,
    out: &mut Vec<u8>,
) {
    // Room for a typical renewal: a one-byte step and a number of a few bytes.
    out.reserve(32 + renewals.len() * 4);
    Output::append(version, out, |out| {
        version.put(out);
        at.put(out);
        wall.put(out);
    });
    put_varint(renewals.len() as u64, out);
    put_varint(commands as u64, out);
    put_renewals(renewals, out);
}

/// Appends one command, in this version, to stand behind an entry's head or to be forwarded alone.
pub fn encode_command(version: FormatVersion, command: &Command, out: &mut Vec<u8>) {
    debug_assert!(command.fits(version), "asked before encoding: {command:?} in version {version}");
    Output::append(version, out, |out| command.put(out));
}

/// Appends one command of this caller: from anyone it is the command alone. Version 1 knows no callers, and nothing is
/// judged there.
pub fn encode_command_of(version: FormatVersion, identity: &Identity, command: &Command, out: &mut Vec<u8>) {
    if version >= FormatVersion::V2 && *identity != Identity::Anyone {
        Output::append(version, out, |out| {
            out.push(ATTRIBUTED);
            identity.put(out);
        });
    }
    encode_command(version, command, out);
}

/// Whether this version can say all of the command. If not, the cluster has to agree on a newer one first.
pub fn command_fits(version: FormatVersion, command: &Command) -> bool {
    command.fits(version)
}

/// Reads a whole entry; nothing may follow it. A version above `newest` is refused.
pub fn decode_entry(newest: FormatVersion, bytes: &[u8]) -> Result<Entry, WireError> {
    let mut input = Reader::versioned(ENTRY, newest, bytes)?;
    let at = ClusterTime::take(&mut input)?;
    let wall = WallTime::take(&mut input)?;
    let renewals = input.length(RENEWAL_BYTES_MIN)?;
    let commands = input.length(1)?;
    let renewals = take_renewals(&mut input, renewals)?;
    let commands = input.elements(commands)?;
    input.finish()?;
    Ok(Entry { at, wall, renewals, commands })
}

/// Reads one command that was encoded in this version; nothing may follow it.
pub fn decode_command(version: FormatVersion, bytes: &[u8]) -> Result<Command, WireError> {
    let mut input = Reader::new(COMMAND, version, bytes);
    let command = Command::take(&mut input)?;
    input.finish()?;
    Ok(command)
}

/// Appends renewals, packed; their count is the caller's to say.
pub(crate) fn put_renewals(renewals: &[Renewal], out: &mut Vec<u8>) {
    let mut last = 0u64;
    for renewal in renewals {
        let session = renewal.session.get();
        // Wrapping: any two numbers have a step between them, and adding it back gives the number again.
        put_signed(session.wrapping_sub(last) as i64, out);
        put_varint(renewal.number, out);
        last = session;
    }
}

/// Reads so many packed renewals. `count` must have been held against the bytes that are left, because room is
/// made for all of them at once.
pub(crate) fn take_renewals(input: &mut Reader<'_>, count: usize) -> Result<Vec<Renewal>, WireError> {
    let mut renewals = Vec::with_capacity(count);
    let mut last = 0u64;
    for _ in 0..count {
        last = last.wrapping_add(input.signed()? as u64);
        renewals.push(Renewal { session: SessionNumber::new(last), number: input.varint()? });
    }
    Ok(renewals)
}
