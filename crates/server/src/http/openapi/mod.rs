//! `/openapi.json`: the HTTP surface, described for programs.
//!
//! Paths are those of the call table; shapes are derived from the types that the handlers read and write
//! (`schemas.rs`). What a call takes, answers and refuses is in `operations.rs`, by type and by code. Tests compare
//! the document with the routes, and every answer of every test with its shape.

mod operations;
mod schemas;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use axum::http::header;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde_json::{Map, Value, json};
use tenure_wire::{Code, json as shapes};

use self::schemas::Schemas;
use super::request::HttpRequest;
use crate::call_table::{BindingKind, Call, HttpBinding};
use crate::context::CallContext;
use crate::front::Api;

/// The document.
pub(crate) static DOCUMENT: LazyLock<Value> = LazyLock::new(document);
static PAGE: LazyLock<String> = LazyLock::new(|| DOCUMENT.to_string());

pub(crate) async fn page(_: Arc<Api>, _: CallContext, _: HttpRequest) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], PAGE.as_str()).into_response()
}

/// What is in the table and for nobody's program: the dashboard, and the leader's probe of its own port.
const UNDESCRIBED: &[&str] = &["/", "/web/{file}", "/v1/probe/{number}"];

fn http_bindings() -> impl Iterator<Item = &'static HttpBinding> {
    Call::rows().iter().flat_map(|row| row.bindings).filter_map(|binding| match &binding.0 {
        BindingKind::Http(binding) => Some(binding),
        _ => None,
    })
}

/// A pattern of the table as OpenAPI writes it: there a name is a name, with slashes or without.
fn path_of(pattern: &str) -> String {
    pattern.replace("{*", "{")
}

fn document() -> Value {
    let mut document = Document { calls: BTreeMap::new(), schemas: Schemas::new() };
    operations::describe(&mut document);
    let mut paths = Map::new();
    for binding in http_bindings() {
        let path = path_of(binding.pattern);
        if UNDESCRIBED.contains(&path.as_str()) {
            continue;
        }
        let described = document.calls.remove(&(binding.method, path.clone()));
        let mut call = described.unwrap_or_else(|| panic!("{} {path} is not described", binding.method));
        if binding.deprecated {
            call["deprecated"] = true.into();
        }
        paths.entry(path).or_insert_with(|| json!({}))[binding.method.to_lowercase()] = call;
    }
    assert!(document.calls.is_empty(), "described, and not in the table: {:?}", document.calls.keys());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tenure",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Leases with fencing tokens. The verb is what follows the last `:` of a path; a resource's \
                slashes may stay slashes, and a literal colon in the last segment is `%3A`. Bodies are read as JSON \
                whatever their content type. Durations are whole milliseconds; calendar times are for people.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": document.schemas.finish()},
    })
}

/// The document while it is written.
struct Document {
    /// By method and path.
    calls: BTreeMap<(&'static str, String), Value>,
    schemas: Schemas,
}

/// Refusals that any call may meet. A head can be too large as well as a body.
const ANY: &[Code] = &[
    Code::Unauthenticated,
    Code::Forbidden,
    Code::ForeignOrigin,
    Code::TooLarge,
    Code::Overloaded,
    Code::NoLeader,
    Code::ShuttingDown,
    Code::AuditFailed,
];
/// Refusals that any call with a body may meet.
const BODY: &[Code] = &[Code::InvalidBody, Code::InvalidArgument];

impl Document {
    /// Begins to describe one call; `id` is its name for programs.
    fn call(
        &mut self,
        method: &'static str,
        path: &'static str,
        id: &'static str,
        summary: &'static str,
    ) -> Operation<'_> {
        let operation = Operation {
            document: self,
            at: vec![(method, path, id)],
            summary,
            parameters: Vec::new(),
            body: None,
            responses: Map::new(),
        };
        operation.refused(ANY)
    }
}

/// One call being described.
#[must_use = "`add` puts it into the document"]
struct Operation<'a> {
    document: &'a mut Document,
    /// Where, and its name there: method, path, name.
    at: Vec<(&'static str, &'static str, &'static str)>,
    summary: &'static str,
    parameters: Vec<Value>,
    body: Option<Value>,
    responses: Map<String, Value>,
}

impl Operation<'_> {
    /// With parameters outside of path and body.
    fn query<T: JsonSchema>(mut self) -> Self {
        for (name, description, shape) in self.document.schemas.query::<T>() {
            self.parameters
                .push(json!({"name": name, "in": "query", "description": description, "schema": shape}));
        }
        self.refused(&[Code::InvalidArgument])
    }

    /// About the caller's own session: the header names it; at the other place, which is older, the path does.
    fn own_session(mut self, older_path: &'static str, id: &'static str) -> Self {
        let method = self.at[0].0;
        self.at.push((method, older_path, id));
        self.refused(&[Code::InvalidSession])
    }

    /// The header names the session.
    fn required_session(mut self) -> Self {
        self.parameters.push(operations::session_header(true));
        self
    }

    /// A body that may name the session; the header may instead.
    fn session_by_header(mut self) -> Self {
        self.parameters.push(operations::session_header(false));
        self
    }

    /// With a header that may be left out.
    fn header(mut self, name: &str, description: &str) -> Self {
        self.parameters.push(json!({
            "name": name, "in": "header", "description": description, "schema": {"type": "string"},
        }));
        self.refused(&[Code::InvalidArgument])
    }

    fn body<T: JsonSchema>(self) -> Self {
        let shape = |schemas: &mut Schemas| schemas.body::<T>();
        self.with_body(shape, true)
    }

    /// A body that may be left out is read as `{}`.
    fn optional_body<T: JsonSchema>(self) -> Self {
        let shape = |schemas: &mut Schemas| schemas.body::<T>();
        self.with_body(shape, false)
    }

    /// A body in which one more field is required than its type says.
    fn body_with<T: JsonSchema>(self, field: &str) -> Self {
        let shape = |schemas: &mut Schemas| json!({"allOf": [schemas.body::<T>()], "required": [field]});
        self.with_body(shape, true)
    }

    fn with_body(mut self, shape: impl FnOnce(&mut Schemas) -> Value, required: bool) -> Self {
        let shape = shape(&mut self.document.schemas);
        self.body = Some(json!({"required": required, "content": {"application/json": {"schema": shape}}}));
        self.refused(BODY)
    }

    fn ok<T: JsonSchema>(self) -> Self {
        let shape = self.document.schemas.answer::<T>();
        self.answers(200, "Done.", "application/json", shape)
    }

    /// One of two shapes, as the query asks.
    fn ok_either<T: JsonSchema, U: JsonSchema>(self) -> Self {
        let schemas = &mut self.document.schemas;
        let shape = json!({"anyOf": [schemas.answer::<T>(), schemas.answer::<U>()]});
        self.answers(200, "Done.", "application/json", shape)
    }

    /// An acquire that is still queued when its `poll_ms` is over.
    fn queued(self) -> Self {
        let shape = self.document.schemas.answer::<shapes::Queued>();
        self.answers(202, "Still queued after `poll_ms`.", "application/json", shape)
    }

    /// Something that no type of ours is: text, or a document of a standard.
    fn answers(mut self, status: u16, description: &str, content: &str, shape: Value) -> Self {
        let answer = json!({"description": description, "content": {content: {"schema": shape}}});
        self.responses.insert(status.to_string(), answer);
        self
    }

    /// Also refused with these codes.
    fn refused(mut self, codes: &[Code]) -> Self {
        let error = self.document.schemas.answer::<shapes::ErrorBody>();
        refuse(&mut self.responses, &error, codes);
        self
    }

    /// Puts it into the document.
    fn add(self) {
        let several = self.at.len() > 1;
        for (method, path, id) in self.at {
            let named = path.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
            let mut parameters: Vec<Value> = match named {
                Some((name, _)) => vec![operations::path_parameter(name)],
                None if several => vec![operations::session_header(true)],
                None => Vec::new(),
            };
            parameters.extend(self.parameters.iter().cloned());
            let mut responses = self.responses.clone();
            if named.is_some() {
                let error = self.document.schemas.answer::<shapes::ErrorBody>();
                refuse(&mut responses, &error, &[Code::InvalidName, Code::NoSuchCall]);
            }
            let mut call = json!({"operationId": id, "summary": self.summary, "responses": responses});
            if !parameters.is_empty() {
                call["parameters"] = parameters.into();
            }
            if let Some(body) = &self.body {
                call["requestBody"] = body.clone();
            }
            self.document.calls.insert((method, path.to_owned()), call);
        }
    }
}

/// Adds refusals to answers; codes that share a status are listed together.
fn refuse(responses: &mut Map<String, Value>, error: &Value, codes: &[Code]) {
    for code in codes {
        let answer = responses.entry(code.http_status().to_string()).or_insert_with(
            || json!({"description": "", "content": {"application/json": {"schema": error}}}),
        );
        let description = answer["description"].as_str().unwrap_or_default();
        let word = format!("`{code}`");
        if !description.contains(&word) {
            answer["description"] =
                if description.is_empty() { word } else { format!("{description}, {word}") }.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every `$ref` of the document names a schema, and every schema is used.
    #[test]
    fn every_reference_leads_somewhere() {
        let text = DOCUMENT.to_string();
        let schemas = DOCUMENT["components"]["schemas"].as_object().unwrap();
        for (at, _) in text.match_indices("#/components/schemas/") {
            let name = text[at..].trim_start_matches("#/components/schemas/").split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name} is not described");
        }
        for name in schemas.keys() {
            assert!(
                text.contains(&format!("#/components/schemas/{name}\"")),
                "{name} is described and not used"
            );
        }
    }

    #[test]
    fn every_call_has_a_name_of_its_own() {
        let mut names = Vec::new();
        for (path, methods) in DOCUMENT["paths"].as_object().unwrap() {
            for (method, call) in methods.as_object().unwrap() {
                names.push(call["operationId"].as_str().unwrap().to_owned());
                assert!(call["responses"]["200"].is_object(), "{method} {path}");
                let parts = path.matches('{').count();
                let described = call["parameters"]
                    .as_array()
                    .map_or(0, |all| all.iter().filter(|parameter| parameter["in"] == "path").count());
                assert_eq!(parts, described, "{method} {path}");
            }
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    /// The types carry everything over: what is required, which unknown fields are refused, what people read.
    #[test]
    fn shapes_follow_the_types() {
        let schemas = &DOCUMENT["components"]["schemas"];
        let open = &schemas["OpenSession"];
        assert_eq!(open["required"], json!(["holder", "ttl_ms"]));
        assert_eq!(open["additionalProperties"], false, "a body refuses what it does not know");
        assert_eq!(open["properties"]["ttl_ms"]["maximum"], 3_600_000);
        assert_eq!(open["properties"]["nonce"]["type"], json!(["string", "null"]));
        let granted = &schemas["Granted"];
        assert!(granted["additionalProperties"].is_null(), "an answer may grow");
        assert_eq!(granted["properties"]["token"]["minimum"], 1);
        assert_eq!(granted["properties"]["session"]["type"], "string", "left out rather than null");
        let required = granted["required"].as_array().unwrap();
        assert!(required.contains(&json!("slot")) && !required.contains(&json!("session")), "{required:?}");
        for (name, schema) in schemas.as_object().unwrap() {
            assert!(schema["description"].is_string(), "{name} has no comment");
            for (field, shape) in schema["properties"].as_object().into_iter().flatten() {
                let described = shape["description"].is_string() || shape["const"].is_string();
                assert!(described, "{name}.{field} has no comment");
            }
        }
    }
}
