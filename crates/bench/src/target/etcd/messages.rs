//! The messages of etcd's v3 API that a lock needs. Field numbers are etcd's.

macro_rules! messages {
    ($($name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* })*) => {
        $(#[derive(Clone, PartialEq, prost::Message)]
        pub struct $name { $($(#[$attribute])* pub $field: $type,)* })*
    };
}

messages! {
    Header {
        #[prost(uint64, tag = "2")] member_id: u64,
        #[prost(int64, tag = "3")] revision: i64,
    }
    KeyValue {
        #[prost(bytes = "vec", tag = "1")] key: Vec<u8>,
        #[prost(int64, tag = "2")] create_revision: i64,
    }
    RangeRequest {
        #[prost(bytes = "vec", tag = "1")] key: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")] range_end: Vec<u8>,
        #[prost(int64, tag = "3")] limit: i64,
        #[prost(int32, tag = "5")] sort_order: i32,
        #[prost(int32, tag = "6")] sort_target: i32,
        #[prost(bool, tag = "9")] count_only: bool,
        #[prost(int64, tag = "13")] max_create_revision: i64,
    }
    RangeResponse {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
        #[prost(message, repeated, tag = "2")] kvs: Vec<KeyValue>,
        #[prost(int64, tag = "4")] count: i64,
    }
    PutRequest {
        #[prost(bytes = "vec", tag = "1")] key: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")] value: Vec<u8>,
        #[prost(int64, tag = "3")] lease: i64,
    }
    PutResponse {}
    DeleteRangeRequest {
        #[prost(bytes = "vec", tag = "1")] key: Vec<u8>,
    }
    DeleteRangeResponse {
        #[prost(int64, tag = "2")] deleted: i64,
    }

    RequestOp {
        #[prost(message, optional, tag = "1")] range: Option<RangeRequest>,
        #[prost(message, optional, tag = "2")] put: Option<PutRequest>,
    }

    ResponseOp {
        #[prost(message, optional, tag = "1")] range: Option<RangeResponse>,
    }
    Compare {
        #[prost(int32, tag = "1")] result: i32,
        #[prost(int32, tag = "2")] target: i32,
        #[prost(bytes = "vec", tag = "3")] key: Vec<u8>,
        #[prost(int64, optional, tag = "5")] create_revision: Option<i64>,
    }
    TxnRequest {
        #[prost(message, repeated, tag = "1")] compare: Vec<Compare>,
        #[prost(message, repeated, tag = "2")] success: Vec<RequestOp>,
        #[prost(message, repeated, tag = "3")] failure: Vec<RequestOp>,
    }
    TxnResponse {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
        #[prost(bool, tag = "2")] succeeded: bool,
        #[prost(message, repeated, tag = "3")] responses: Vec<ResponseOp>,
    }
    LeaseGrantRequest {
        #[prost(int64, tag = "1")] ttl_seconds: i64,
    }
    LeaseGrantResponse {
        #[prost(int64, tag = "2")] id: i64,
    }
    LeaseKeepAliveRequest {
        #[prost(int64, tag = "1")] id: i64,
    }
    LeaseKeepAliveResponse {
        #[prost(int64, tag = "2")] id: i64,
        #[prost(int64, tag = "3")] ttl_seconds: i64,
    }
    WatchRequest {
        #[prost(message, optional, tag = "1")] create: Option<WatchCreateRequest>,
    }
    WatchCreateRequest {
        #[prost(bytes = "vec", tag = "1")] key: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")] range_end: Vec<u8>,
        #[prost(int64, tag = "3")] start_revision: i64,
    }
    WatchResponse {
        #[prost(bool, tag = "3")] created: bool,
        #[prost(bool, tag = "4")] canceled: bool,
        #[prost(message, repeated, tag = "11")] events: Vec<Event>,
    }
    Event {
        #[prost(int32, tag = "1")] kind: i32,
        #[prost(message, optional, tag = "2")] kv: Option<KeyValue>,
    }
    StatusRequest {}
    StatusResponse {
        #[prost(message, optional, tag = "1")] header: Option<Header>,
        #[prost(uint64, tag = "4")] leader: u64,
    }
    MoveLeaderRequest {
        #[prost(uint64, tag = "1")] target: u64,
    }
    MoveLeaderResponse {}
}

/// The numbers of sort orders and targets, and of events.
pub const ASCENDING: i32 = 1;
pub const DESCENDING: i32 = 2;
pub const BY_CREATION: i32 = 2;
pub const COMPARE_CREATION: i32 = 1;
pub const DELETED: i32 = 1;
