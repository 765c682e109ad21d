//! How a refusal or failure is reported over gRPC: the table is `tenure_wire`'s, this is its envelope.

use tenure_wire::ApiError;
use tonic::Status;
use tonic::metadata::MetadataValue;

use crate::front::CODE_HEADER;

/// An error as a status: the details carry everything, a header the stable code.
pub(crate) fn status(error: ApiError) -> Status {
    let code = error.code;
    let mut status = Status::from(error);
    status.metadata_mut().insert(CODE_HEADER, MetadataValue::from_static(code.as_str()));
    status
}
