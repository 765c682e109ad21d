//! Backup files: a snapshot without sessions that has left the cluster.
//!
//! A backup says in its head what a person restoring it must know before anything else: which cluster, how
//! far its tokens had counted, its revision and its age. Then come the blocks of a snapshot, and a checksum
//! over everything ends the file. Nothing of a backup is believed before that checksum has been seen to hold.
//!
//! A backup is read as it arrives, whatever its size: [`BackupReader`] takes bytes and gives the pieces of a
//! restore. It needs memory for one block and one piece. Sessions are left out on both sides: a backup that
//! this release writes has none, and those of release 0.1.0, which had, are read without them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

use tenure_core::state::{
    BackupBase, Key, Pulse, RegisterRecord, Resource, Session, SigningKey, State, Waiter,
};
use tenure_core::{
    BackupRecords, ClusterTime, Contradiction, FormatVersion, HolderName, IdentityName,
    RESTORE_PIECE_BYTES_MAX, RESTORE_PIECE_RECORDS_MAX, RestoreId, RestorePiece, Revision, SessionNumber,
    WallTime,
};
use xxhash_rust::xxh3::Xxh3Default;

use crate::codec::{Coded, Output, Reader, WireError, record, version_of};
use crate::snapshot::{self, check, tag, take_base, take_key, write_snapshot};

const BACKUP: &str = "backup";
const MAGIC: [u8; 8] = *b"TNRBACK\0";
/// What a head may have at most; ours have less than a hundred bytes.
const HEAD_BYTES_MAX: usize = 4 << 10;
/// What a block may have at most. It has 64 KiB and one record; the largest is a session of release 0.1.0
/// with its remembered answers, 64 MiB at most.
const BLOCK_BYTES_MAX: u64 = 128 << 20;
/// A block's tag, how many records it has, and how many bytes.
const BLOCK_HEAD: usize = 1 + 4 + 8;
const CHECKSUM: usize = 16;

/// What a backup says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupHead {
    /// The cluster that it was taken from. A restore makes a new id.
    pub cluster: [u8; 16],
    /// The last token that the cluster had issued then; a restore must start above every token ever
    /// seen, and those issued after the backup are not in it.
    pub last_token: u64,
    /// The revision at which it was taken.
    pub revision: Revision,
    /// The cluster time at which it was taken.
    pub time: ClusterTime,
    /// When it was taken, for people.
    pub wall: WallTime,
}

record!(BackupHead { cluster, last_token, revision, time, wall });

impl BackupHead {
    fn of(state: &State) -> BackupHead {
        BackupHead {
            cluster: state.settings.cluster,
            last_token: state.last_token,
            revision: state.revision,
            time: state.time,
            wall: state.wall,
        }
    }
}

/// Writes a backup of the state, without its sessions, and returns what its head says.
pub fn write_backup(state: &State, out: &mut dyn Write) -> io::Result<BackupHead> {
    let contradicts = |why: Contradiction| io::Error::new(io::ErrorKind::InvalidData, why);
    let state = state.clone().without_sessions().map_err(contradicts)?;
    let head = BackupHead::of(&state);
    let bytes = Output::of(state.format, &head);
    let mut out = Hashing { inner: out, hash: Xxh3Default::new() };
    out.write_all(&MAGIC)?;
    out.write_all(&[state.format.get()])?;
    out.write_all(&(bytes.len() as u32).to_le_bytes())?;
    out.write_all(&bytes)?;
    write_snapshot(&state, &mut out)?;
    let checksum = out.hash.digest128();
    out.inner.write_all(&checksum.to_le_bytes())?;
    out.inner.flush()?;
    Ok(head)
}

/// Reads a whole backup into memory; gives the state, without sessions, only if the checksum holds and
/// nothing follows it.
pub fn read_backup(input: &mut dyn Read) -> Result<(BackupHead, State), WireError> {
    let mut reader = BackupReader::default();
    let mut parts = Vec::new();
    let mut bytes = vec![0; 64 << 10];
    let mut ended = 0;
    let mut records = Vec::new();
    loop {
        let arrived = input.read(&mut bytes).map_err(|error| WireError::io(BACKUP, error))?;
        if arrived == 0 {
            break;
        }
        reader.push(&bytes[..arrived], &mut parts)?;
        for part in parts.drain(..) {
            if let BackupPart::Piece(piece) = part {
                ended += piece.ended;
                records.push(piece.records);
            }
        }
    }
    let base = reader.base.take();
    let head = reader.finish()?.head;
    let mut state = base.ok_or(WireError::Truncated { what: BACKUP })?;
    for piece in records {
        piece.resources.into_iter().for_each(|(number, resource)| state.resources.insert(number, resource));
        piece.registers.into_iter().for_each(|(number, register)| state.registers.insert(number, register));
        state.used_nonces.extend(piece.used_nonces);
        state.authority.credentials.extend(piece.credentials);
        let policies = piece.policies.into_iter().map(|(name, policy)| (name, Arc::new(policy)));
        state.authority.policies.extend(policies);
    }
    state.count_left_out(ended);
    check(&state)?;
    Ok((head, state))
}

/// Reads only what a backup says about itself, unverified: for showing, not for restoring.
pub fn read_backup_head(input: &mut dyn Read) -> Result<BackupHead, WireError> {
    let mut reader = BackupReader::default();
    let mut byte = [0];
    while reader.head.is_none() {
        input.read_exact(&mut byte).map_err(|error| WireError::io(BACKUP, error))?;
        reader.push(&byte, &mut Vec::new())?;
    }
    reader.head.ok_or(WireError::Truncated { what: BACKUP })
}

/// A part of a backup, in the order of the file.
#[derive(Clone, Debug)]
pub enum BackupPart {
    /// What it says about its cluster: comes first.
    Base(Box<BackupBase>),
    /// Records. The restore's id is for the sender to fill in.
    Piece(Box<RestorePiece>),
}

/// What is known at the end of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupEnd {
    /// What its head says.
    pub head: BackupHead,
    /// How many pieces it has.
    pub pieces: u64,
    /// How many records these have.
    pub records: u64,
    /// The checksum over these pieces, as a commit must name it.
    pub pieces_checksum: u128,
    /// The checksum at the end of the file: it names this very backup.
    pub checksum: [u8; CHECKSUM],
    /// How many bytes it has.
    pub bytes: u64,
}

/// Reads a backup as it arrives. The same backup always gives the same pieces, however its bytes are cut on
/// the way.
#[derive(Default)]
pub struct BackupReader {
    /// What has arrived and was not read yet.
    arrived: Vec<u8>,
    expects: Expects,
    version: Option<FormatVersion>,
    head: Option<BackupHead>,
    /// The state without records.
    base: Option<State>,
    block: BlockOrder,
    /// Who held what, in a backup that has sessions.
    holders: BTreeMap<SessionNumber, (HolderName, Option<IdentityName>)>,
    piece: Piece,
    pieces: u64,
    records: u64,
    pieces_checksum: u128,
    hash: Xxh3Default,
    checksum: Option<[u8; CHECKSUM]>,
    bytes: u64,
}

/// What comes next in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expects {
    #[default]
    Head,
    Snapshot,
    Block,
    Checksum,
    Nothing,
}

/// Where the reader is among the blocks.
#[derive(Default)]
struct BlockOrder {
    last_tag: u8,
    next_key: u64,
    /// How many records there were, of any kind.
    records: u64,
}

/// The piece that is being gathered.
#[derive(Default)]
struct Piece {
    records: BackupRecords,
    ended: u64,
    bytes: usize,
    hash: Xxh3Default,
}

impl BackupReader {
    /// Takes the next bytes of the file; what has become readable goes to `parts`.
    pub fn push(&mut self, bytes: &[u8], parts: &mut Vec<BackupPart>) -> Result<(), WireError> {
        self.bytes += bytes.len() as u64;
        let mut arrived = std::mem::take(&mut self.arrived);
        arrived.extend_from_slice(bytes);
        let mut read = 0;
        while let Some(length) = self.step(&arrived[read..], parts)? {
            if self.expects != Expects::Nothing {
                self.hash.update(&arrived[read..read + length]);
            }
            read += length;
        }
        arrived.drain(..read);
        self.arrived = arrived;
        Ok(())
    }

    /// How many records have been read.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// What the backup says about itself, once that has arrived.
    pub fn head(&self) -> Option<&BackupHead> {
        self.head.as_ref()
    }

    /// Everything has arrived: whether it was a whole backup.
    pub fn finish(self) -> Result<BackupEnd, WireError> {
        let truncated = || WireError::Truncated { what: BACKUP };
        Ok(BackupEnd {
            head: self.head.ok_or_else(truncated)?,
            pieces: self.pieces,
            records: self.records,
            pieces_checksum: self.pieces_checksum,
            checksum: self.checksum.ok_or_else(truncated)?,
            bytes: self.bytes,
        })
    }

    /// Reads what comes next if all of it is here; says how long it was.
    fn step(&mut self, input: &[u8], parts: &mut Vec<BackupPart>) -> Result<Option<usize>, WireError> {
        let read = match self.expects {
            Expects::Head => self.read_head(input)?,
            Expects::Snapshot => self.read_snapshot_head(input)?,
            Expects::Block => self.read_block(input, parts)?,
            Expects::Checksum => self.read_checksum(input)?,
            Expects::Nothing if input.is_empty() => None,
            Expects::Nothing => return Err(WireError::corrupt(BACKUP, "something follows its end")),
        };
        Ok(read)
    }

    fn read_head(&mut self, input: &[u8]) -> Result<Option<usize>, WireError> {
        let known = input.len().min(MAGIC.len());
        if input[..known] != MAGIC[..known] {
            return Err(WireError::corrupt(
                BACKUP,
                "it does not begin like one; is this a file of `tenure cluster backup`?",
            ));
        }
        let Some((start, rest)) = input.split_at_checked(MAGIC.len() + 1) else { return Ok(None) };
        let version = version_of(BACKUP, start[MAGIC.len()], FormatVersion::NEWEST)?;
        let Some((length, rest)) = rest.split_first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > HEAD_BYTES_MAX {
            return Err(WireError::corrupt(BACKUP, "its head is too long"));
        }
        let Some(bytes) = rest.get(..length) else { return Ok(None) };
        let mut reader = Reader::new(BACKUP, version, bytes);
        self.head = Some(BackupHead::take(&mut reader)?);
        reader.finish()?;
        self.expects = Expects::Snapshot;
        Ok(Some(start.len() + size_of::<u32>() + length))
    }

    fn read_snapshot_head(&mut self, input: &[u8]) -> Result<Option<usize>, WireError> {
        let Some(start) = input.get(..snapshot::MAGIC.len() + 1) else { return Ok(None) };
        let (magic, version) = start.split_at(snapshot::MAGIC.len());
        if magic != snapshot::MAGIC {
            return Err(WireError::corrupt(BACKUP, "its content does not begin like a snapshot"));
        }
        self.version = Some(version_of(BACKUP, version[0], FormatVersion::NEWEST)?);
        self.expects = Expects::Block;
        Ok(Some(start.len()))
    }

    fn read_block(&mut self, input: &[u8], parts: &mut Vec<BackupPart>) -> Result<Option<usize>, WireError> {
        let Some((head, rest)) = input.split_at_checked(BLOCK_HEAD) else { return Ok(None) };
        let mut head = Reader::new(BACKUP, FormatVersion::NEWEST, head);
        let block_tag = head.byte()?;
        let count = u32::from_le_bytes(head.array()?);
        let length = u64::from_le_bytes(head.array()?);
        if length > BLOCK_BYTES_MAX {
            return Err(WireError::corrupt(BACKUP, "one of its blocks is too long"));
        }
        let Some(bytes) = rest.get(..length as usize) else { return Ok(None) };
        let order = &mut self.block;
        if block_tag < order.last_tag || (order.last_tag == 0) != (block_tag == tag::BASE) {
            return Err(WireError::corrupt(BACKUP, "its blocks are out of order"));
        }
        if block_tag != order.last_tag {
            order.next_key = 0;
        }
        order.last_tag = block_tag;
        let format = self.version.ok_or(WireError::Truncated { what: BACKUP })?;
        let mut block = Reader::new(BACKUP, format, bytes);
        if block_tag == tag::END {
            if block.varint()? != order.records {
                return Err(WireError::corrupt(BACKUP, "a block of it is missing"));
            }
            self.flush(parts);
            self.expects = Expects::Checksum;
        } else {
            order.records += u64::from(count);
            for _ in 0..count {
                self.read_record(block_tag, format, bytes, &mut block, parts)?;
            }
        }
        block.finish()?;
        Ok(Some(BLOCK_HEAD + bytes.len()))
    }

    fn read_record(
        &mut self,
        block_tag: u8,
        format: FormatVersion,
        bytes: &[u8],
        block: &mut Reader<'_>,
        parts: &mut Vec<BackupPart>,
    ) -> Result<(), WireError> {
        let begins = bytes.len() - block.remaining();
        let next_key = &mut self.block.next_key;
        let mut records = BackupRecords::default();
        let mut ended = 0;
        match block_tag {
            tag::BASE => {
                let mut base = State { format, ..State::default() };
                take_base(block, &mut base)?;
                if self.base.is_some() || self.head.as_ref() != Some(&BackupHead::of(&base)) {
                    return Err(WireError::corrupt(BACKUP, "its head does not describe its content"));
                }
                base.restored = None;
                parts.push(BackupPart::Base(Box::new(base.backup_base())));
                self.base = Some(base);
                return Ok(());
            }
            tag::RESOURCES => {
                let number = Key::from_number(take_key(block, next_key)?);
                let resource = Resource::take(block)?;
                let base = self.base.as_ref().ok_or(WireError::Truncated { what: BACKUP })?;
                let resource = if resource.is_free_of_sessions() {
                    resource
                } else {
                    let holder = |session| self.holders.get(&session).cloned();
                    let (resource, left_out) = resource
                        .without_sessions(&base.backup_base(), holder)
                        .map_err(|why| WireError::corrupt(BACKUP, why.0))?;
                    ended = left_out;
                    resource
                };
                records.resources.push((number, resource));
            }
            tag::REGISTERS => {
                let number = Key::from_number(take_key(block, next_key)?);
                if let Some(register) = RegisterRecord::take(block)?.without_sessions() {
                    records.registers.push((number, register));
                }
            }
            tag::USED_NONCES => records.used_nonces.push(Coded::take(block)?),
            // What a backup of release 0.1.0 has beyond that; read, because damage must be noticed, and left
            // out.
            tag::PULSES => drop((take_key(block, next_key)?, Pulse::take(block)?)),
            tag::SESSIONS => {
                let number = SessionNumber::from_number(take_key(block, next_key)?);
                let session = Session::take(block)?;
                if !session.leases.is_empty() {
                    self.holders.insert(number, (session.holder, None));
                }
            }
            tag::WAITERS => drop((take_key(block, next_key)?, Waiter::take(block)?)),
            tag::CREDENTIALS if format >= FormatVersion::V2 => records.credentials.push(Coded::take(block)?),
            tag::POLICIES if format >= FormatVersion::V2 => records.policies.push(Coded::take(block)?),
            tag::KEYS => drop((std::sync::Arc::<str>::take(block)?, SigningKey::take(block)?)),
            other => return Err(block.corrupt(format!("there is no block of kind {other}"))),
        }
        if !records.is_empty() {
            let ends = bytes.len() - block.remaining();
            self.add(records, ended, &bytes[begins..ends], parts);
        }
        Ok(())
    }

    /// Adds a record to the piece that is being gathered. Pieces are cut by what they hold and by nothing
    /// else.
    fn add(&mut self, records: BackupRecords, ended: u64, bytes: &[u8], parts: &mut Vec<BackupPart>) {
        if self.piece.bytes + bytes.len() > RESTORE_PIECE_BYTES_MAX
            || self.piece.records.len() == RESTORE_PIECE_RECORDS_MAX
        {
            self.flush(parts);
        }
        self.records += 1;
        let piece = &mut self.piece;
        piece.records.resources.extend(records.resources);
        piece.records.registers.extend(records.registers);
        piece.records.used_nonces.extend(records.used_nonces);
        piece.records.credentials.extend(records.credentials);
        piece.records.policies.extend(records.policies);
        piece.ended += ended;
        piece.bytes += bytes.len();
        piece.hash.update(bytes);
    }

    fn flush(&mut self, parts: &mut Vec<BackupPart>) {
        let Piece { records, ended, bytes, hash } = std::mem::take(&mut self.piece);
        if records.is_empty() {
            return;
        }
        let piece = RestorePiece {
            id: RestoreId::new([0; 16]),
            number: self.pieces,
            bytes: bytes as u64,
            checksum: hash.digest128(),
            ended,
            records,
        };
        self.pieces += 1;
        self.pieces_checksum = piece.chain(self.pieces_checksum);
        parts.push(BackupPart::Piece(Box::new(piece)));
    }

    fn read_checksum(&mut self, input: &[u8]) -> Result<Option<usize>, WireError> {
        let Some(checksum) = input.first_chunk::<CHECKSUM>() else { return Ok(None) };
        if u128::from_le_bytes(*checksum) != self.hash.digest128() {
            return Err(WireError::corrupt(
                BACKUP,
                "its checksum does not match its content; take another copy of the file, or another backup",
            ));
        }
        self.checksum = Some(*checksum);
        self.expects = Expects::Nothing;
        Ok(Some(checksum.len()))
    }
}

/// Bytes that are hashed on their way through.
struct Hashing<'a> {
    inner: &'a mut dyn Write,
    hash: Xxh3Default,
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
