//! DynamoDB. The mark is an item of its own; a guarded write is a transaction whose first action is the
//! condition that the mark's token is ours, so DynamoDB refuses all of it or none.
//!
//! ```ignore
//! let put = json!({"Put": {"TableName": "accounts", "Item": {"id": {"S": "7"}, "balance": {"N": "90"}}}});
//! fence.write(&permit, vec![put]).await?;
//! ```
//!
//! The conditions hold in one region: a global table in its eventual mode is last-writer-wins, and there
//! this fence protects nothing. `BatchWriteItem` knows no conditions and so cannot be guarded. The table's
//! time-to-live must never reach the fence's items. Outside the default build, and tested against a stand-in:
//! it judges conditions and transactions as DynamoDB does, but has no regions, throttling or real signatures.

mod sign;

pub use sign::Credentials;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tenure_clock::{Clock, SystemClock};
use tenure_core::{HolderName, Scope, Token};

use crate::budget::{self, UNSTATED};
use crate::rule::{Standing, judge};
use crate::{Authority, Barrier, Cursor, Fence, FenceError, FenceFuture, FenceMark, FindOut, Takeover};

/// The fence in one table, whose partition key is the string `pk` and which has no sort key.
#[derive(Clone)]
pub struct DynamoDb {
    http: reqwest::Client,
    endpoint: String,
    region: String,
    credentials: Credentials,
    table: String,
    clock: Arc<dyn Clock>,
}

/// How an answer that is not a success is distinguished.
struct ErrorReply {
    kind: String,
    body: Value,
}

impl DynamoDb {
    /// A fence at `endpoint` (`https://dynamodb.eu-central-1.amazonaws.com`) in `table`.
    pub fn new(endpoint: &str, region: &str, credentials: Credentials, table: &str) -> DynamoDb {
        DynamoDb {
            http: reqwest::Client::new(),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            region: region.to_owned(),
            credentials,
            table: table.to_owned(),
            clock: Arc::new(SystemClock),
        }
    }

    /// The same with another clock.
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> DynamoDb {
        DynamoDb { clock, ..self }
    }

    /// Installs the takeover's token; see [`Fence::barrier`].
    pub async fn barrier(&self, takeover: &Takeover) -> Result<Barrier, FenceError> {
        let budget = budget::of_takeover(takeover, &*self.clock)?;
        self.raise(takeover.scope(), takeover.token(), Some(takeover.holder()), budget).await
    }

    async fn raise(
        &self,
        scope: &Scope,
        token: Token,
        holder: Option<&HolderName>,
        budget: Option<Duration>,
    ) -> Result<Barrier, FenceError> {
        let mut values = json!({":t": {"N": token.to_string()}});
        let change = match holder {
            Some(holder) => {
                values[":h"] = json!({"S": holder.as_str()});
                "SET #t = :t, holder = :h"
            }
            None => "SET #t = :t REMOVE holder",
        };
        let request = json!({
            "TableName": self.table, "Key": self.key(scope),
            "UpdateExpression": change,
            "ConditionExpression": "attribute_not_exists(#t) OR #t <= :t",
            "ExpressionAttributeNames": {"#t": "token"},
            "ExpressionAttributeValues": values,
            "ReturnValues": "ALL_OLD", "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        });
        match self.call("UpdateItem", &request, budget, FindOut::Repeat).await? {
            Ok(answer) => match to_mark(&answer["Attributes"])? {
                None => Ok(Barrier { predecessor: None, seq: 0, cursor: None }),
                Some(mark) => {
                    Ok(Barrier { predecessor: Some(mark.token), seq: mark.seq, cursor: mark.cursor })
                }
            },
            Err(failure) if failure.kind == "ConditionalCheckFailedException" => {
                let seen = to_mark(&failure.body["Item"])?.map(|mark| mark.token);
                judge(scope, token, seen)?;
                Err(FenceError::unavailable("the condition failed, but the mark does not say why"))
            }
            Err(failure) => Err(failure.into_error()),
        }
    }

    /// Runs up to 99 actions of `TransactWriteItems`, as that call's documentation writes them, all or none,
    /// if the token is not stale.
    pub async fn write<A: Authority>(&self, authority: &A, actions: Vec<Value>) -> Result<(), FenceError> {
        self.transact(authority, actions, None).await
    }

    /// The same, and moves the cursor in the same step.
    pub async fn write_and_advance<A: Authority>(
        &self,
        authority: &A,
        actions: Vec<Value>,
        cursor: Cursor,
    ) -> Result<(), FenceError> {
        self.transact(authority, actions, Some(cursor)).await
    }

    async fn transact<A: Authority>(
        &self,
        authority: &A,
        actions: Vec<Value>,
        cursor: Option<Cursor>,
    ) -> Result<(), FenceError> {
        let (scope, token) = (authority.scope(), authority.token());
        let condition = json!({
            "TableName": self.table, "Key": self.key(scope),
            "ConditionExpression": "#t = :t",
            "ExpressionAttributeNames": {"#t": "token"},
            "ExpressionAttributeValues": {":t": {"N": token.to_string()}},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        });
        let first = match &cursor {
            None => json!({"ConditionCheck": condition}),
            // A condition and a change may not name the same item twice: the change carries the condition.
            Some(cursor) => {
                let mut update = condition;
                update["UpdateExpression"] = json!("SET #c = :c ADD seq :one");
                update["ExpressionAttributeNames"]["#c"] = json!("cursor");
                update["ExpressionAttributeValues"][":c"] = json!({"B": STANDARD.encode(cursor.as_bytes())});
                update["ExpressionAttributeValues"][":one"] = json!({"N": "1"});
                json!({"Update": update})
            }
        };
        let mut items = vec![first];
        items.extend(actions);
        let request = json!({"TransactItems": items});
        loop {
            let budget = budget::of(authority, &*self.clock)?;
            let failure = match self.call("TransactWriteItems", &request, budget, FindOut::ReadBack).await? {
                Ok(_) => return Ok(()),
                Err(failure) => failure,
            };
            if failure.kind != "TransactionCanceledException" {
                return Err(failure.into_error());
            }
            let reasons = failure.body["CancellationReasons"].as_array().cloned().unwrap_or_default();
            let of =
                |reason: Option<&Value>| reason.and_then(|r| r["Code"].as_str()).unwrap_or("None").to_owned();
            match of(reasons.first()).as_str() {
                "ConditionalCheckFailed" => {
                    let seen = to_mark(&reasons[0]["Item"])?.map(|mark| mark.token);
                    if judge(scope, token, seen)? == Standing::Raises {
                        self.raise(scope, token, None, budget).await?;
                    }
                }
                // Met another transaction on the way; nothing was done.
                "TransactionConflict" | "ThrottlingError" => tokio::task::yield_now().await,
                _ if reasons.iter().any(|reason| of(Some(reason)) == "TransactionConflict") => {
                    tokio::task::yield_now().await;
                }
                _ => return Err(failure.into_error()),
            }
        }
    }

    /// What the fence remembers of a scope.
    pub async fn mark(&self, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        let request = json!({"TableName": self.table, "Key": self.key(scope), "ConsistentRead": true});
        let answer = self.call("GetItem", &request, None, FindOut::Repeat).await?;
        to_mark(&answer.map_err(ErrorReply::into_error)?["Item"])
    }

    /// Lowers a poisoned mark, audited in the item itself; see [`Fence::repair`].
    pub async fn repair(
        &self,
        scope: &Scope,
        to: Token,
        by: &HolderName,
        reason: &str,
    ) -> Result<FenceMark, FenceError> {
        let line = format!("{} -> {to} by {by}: {reason}", self.clock.wall().as_unix_millis());
        let request = json!({
            "TableName": self.table, "Key": self.key(scope),
            "UpdateExpression": "SET #t = :t, #a = list_append(if_not_exists(#a, :none), :line) REMOVE holder",
            "ConditionExpression": "attribute_exists(#t)",
            "ExpressionAttributeNames": {"#t": "token", "#a": "audit"},
            "ExpressionAttributeValues": {
                ":t": {"N": to.to_string()}, ":none": {"L": []}, ":line": {"L": [{"S": line}]},
            },
            "ReturnValues": "ALL_NEW",
        });
        match self.call("UpdateItem", &request, None, FindOut::Repeat).await? {
            Ok(answer) => {
                to_mark(&answer["Attributes"])?.ok_or_else(|| FenceError::refused("the mark has vanished"))
            }
            Err(failure) if failure.kind == "ConditionalCheckFailedException" => {
                Err(FenceError::refused(format!("no token was ever seen for {scope}")))
            }
            Err(failure) => Err(failure.into_error()),
        }
    }

    fn key(&self, scope: &Scope) -> Value {
        json!({"pk": {"S": format!("tenure-fence#{scope}")}})
    }

    /// One request: an answer, a refusal by DynamoDB, or an error that says what may have happened.
    async fn call(
        &self,
        operation: &str,
        request: &Value,
        budget: Option<Duration>,
        find_out: FindOut,
    ) -> Result<Result<Value, ErrorReply>, FenceError> {
        let body = request.to_string();
        let host = self.endpoint.split("://").nth(1).unwrap_or(&self.endpoint);
        let signed = sign::Signed {
            host,
            region: &self.region,
            target: &format!("DynamoDB_20120810.{operation}"),
            unix_seconds: self.clock.wall().as_unix_millis() / 1000,
        };
        let mut post = self.http.post(format!("{}/", self.endpoint));
        for (name, value) in sign::headers(&self.credentials, &signed, body.as_bytes()) {
            post = post.header(name, value);
        }
        let sending = async {
            let answer = post.body(body).send().await?;
            let status = answer.status();
            Ok::<_, reqwest::Error>((status, answer.bytes().await?))
        };
        let (status, bytes) = match tokio::time::timeout(budget.unwrap_or(UNSTATED), sending).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) if error.is_connect() => return Err(FenceError::unavailable(error)),
            Ok(Err(error)) => return Err(FenceError::unknown(find_out, error)),
            Err(elapsed) => return Err(FenceError::unknown(find_out, elapsed)),
        };
        let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        if status.is_success() {
            return Ok(Ok(body));
        }
        if status.is_server_error() {
            return Err(FenceError::unknown(find_out, format!("{status}: {body}")));
        }
        let kind = body["__type"].as_str().unwrap_or("").rsplit('#').next().unwrap_or("").to_owned();
        Ok(Err(ErrorReply { kind, body }))
    }
}

impl Fence for DynamoDb {
    fn barrier<'a>(&'a self, takeover: &'a Takeover) -> FenceFuture<'a, Barrier> {
        Box::pin(DynamoDb::barrier(self, takeover))
    }

    fn mark<'a>(&'a self, scope: &'a Scope) -> FenceFuture<'a, Option<FenceMark>> {
        Box::pin(DynamoDb::mark(self, scope))
    }

    fn repair<'a>(
        &'a self,
        scope: &'a Scope,
        to: Token,
        by: &'a HolderName,
        reason: &'a str,
    ) -> FenceFuture<'a, FenceMark> {
        Box::pin(DynamoDb::repair(self, scope, to, by, reason))
    }
}

impl ErrorReply {
    /// A 4xx answer: nothing was done.
    fn into_error(self) -> FenceError {
        let text = format!("{}: {}", self.kind, self.body);
        match self.kind.as_str() {
            "ProvisionedThroughputExceededException"
            | "ThrottlingException"
            | "RequestLimitExceeded"
            | "TransactionConflictException"
            | "TransactionInProgressException" => FenceError::unavailable(text),
            _ => FenceError::refused(text),
        }
    }
}

fn to_mark(item: &Value) -> Result<Option<FenceMark>, FenceError> {
    let Some(token) = item["token"]["N"].as_str() else { return Ok(None) };
    let token =
        Token::try_from(token.parse::<u64>().map_err(FenceError::refused)?).map_err(FenceError::refused)?;
    let seq = item["seq"]["N"].as_str().map_or(Ok(0), str::parse).map_err(FenceError::refused)?;
    let cursor = item["cursor"]["B"].as_str().map(|text| STANDARD.decode(text)).transpose();
    Ok(Some(FenceMark {
        token,
        holder: item["holder"]["S"].as_str().and_then(|name| name.parse().ok()),
        seq,
        cursor: cursor.map_err(FenceError::refused)?.map(Cursor::from),
    }))
}
