//! Every byte shape that we have promised to read again: log entries, snapshots, backups, the gRPC
//! interface `tenure.v1` and its JSON twin.
//!
//! This crate decides how values look as bytes and which words a refusal is reported in. It never decides
//! who holds a lease, and it never trusts what it reads: every name is checked again, no length is
//! believed before the bytes are there, and a format that is newer than this build is refused by name.
//!
//! Start with [`encode_entry`] and [`write_snapshot`] for what a replica stores, [`json`] and [`proto`] for what
//! crosses the client port, [`ApiError`] for how a refusal is reported.

mod backup;
mod captured;
mod codec;
mod credential;
mod error;
mod event_file;
mod forward;
pub mod grpc;
pub mod json;
mod log;
mod messages;
pub mod policy_text;
pub mod proto;
mod records;
mod snapshot;
pub mod words;

pub use backup::{
    BackupEnd, BackupHead, BackupPart, BackupReader, read_backup, read_backup_head, write_backup,
};
pub use captured::Captured;
pub use codec::WireError;
pub use credential::{
    Bearer, CREDENTIAL_FILE_BYTES_MAX, CredentialFile, InvalidBearer, InvalidCredentialFile,
};
pub use error::{About, ApiError, Code, Effect, UnknownCode};
pub use event_file::{
    EVENT_FILE_HEAD_BYTES, EVENT_FRAME_HEAD_BYTES, EventFrame, encode_event, event_file_head,
    read_event_file_head,
};
pub use forward::{
    ForwardFailure, Forwarded, ForwardedReply, decode_forwarded, decode_forwarded_reply, encode_forwarded,
    encode_forwarded_reply,
};
pub use log::{
    command_fits, decode_command, decode_entry, encode_command, encode_command_of, encode_entry,
    encode_entry_head,
};
pub use messages::Messages;
pub use snapshot::{read_snapshot, state_hash, write_snapshot};
