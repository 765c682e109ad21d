//! Between the messages of `tenure.v1` and the words of the protocol.
//!
//! Requests become commands here (names checked, absent fields given their stated meaning) and answers become
//! messages. Nothing here decides; a message that makes no sense is an [`ApiError`](crate::ApiError).

mod answers;
mod requests;
mod status;
mod stream;

pub use answers::{
    event, events_of, grant, grant_to_another, holding, lease, register, renewal_event_parts, renewed,
    session_summary, transition,
};
pub use requests::{
    acquire, arm, cancel, close, key, open, rebind, release, report_pause, report_refused, resource, revoke,
    scope, seen, set_kind, transfer, write,
};
pub use stream::{answer_content, frame_command, pack_renewals, push_content, secret, unpack_renewals};
