//! Between the messages of `tenure.v1` and the values of the protocol, both ways: the only place where either
//! becomes the other.
//!
//! | way | file |
//! |---|---|
//! | request to command, and back | `requests.rs`, `stream.rs` |
//! | answer or view to message | `answers.rs`, `stream.rs` |
//! | message to answer or view | `read.rs` |
//! | error to status, and back | `status.rs` |
//!
//! Names are checked, and absent fields get their stated meaning. Nothing here decides; a request that makes no
//! sense is an [`ApiError`](crate::ApiError).

mod answers;
mod auth;
mod read;
mod requests;
mod status;
mod stream;

pub use answers::{
    event, events_of, fence, grant, grant_to_another, history, holding, lease, opened, own_session, register,
    renewal_event_parts, renewed, renewed_many, session_summary, transition,
};
pub use auth::put_policy;
pub(crate) use read::kind_of;
pub use read::{
    Push, end_reason, read_done, read_grant, read_holding, read_lease, read_mode, read_push, read_register,
    read_renewed, unreadable,
};
pub use requests::{
    acquire, after_resource, arm, barrier, cancel, cancel_nonce_request, close, close_request, key, open,
    open_request, rebind, release, release_request, remove_fence, renewals, report_pause, report_refused,
    resource, revoke, revoke_request, scope, seen, set_kind, transfer, transfer_request, wait_request, write,
};
pub use stream::{
    answer_content, attach_frame, attached, client_frame, frame_command, pack_positions, pack_renewals,
    push_content, renewal_attach, secret, session_of, unpack_positions, unpack_renewals,
};
