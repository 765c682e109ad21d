//! Whether an answer fits what `/openapi.json` says of it. Every answer that a test gets over HTTP is compared, so the
//! description cannot say something else than the node does.

use axum::http::{Method, StatusCode};
use serde_json::Value;

use crate::http::openapi::DOCUMENT;

/// Panics if this answer is not one that the document describes. What is no described call, or no JSON, is not
/// looked at.
#[track_caller]
pub fn check(method: &Method, path: &str, status: StatusCode, content_type: &str, body: &[u8]) {
    let Some(call) = call(method, path) else { return };
    let described = &call["responses"][status.as_str()];
    assert!(described.is_object(), "{method} {path} answers {status}, which is not described");
    if !content_type.starts_with("application/json") {
        return;
    }
    let answer: Value = serde_json::from_slice(body).expect("JSON");
    let schema = &described["content"]["application/json"]["schema"];
    if let Err(why) = fits(&answer, schema) {
        panic!("{method} {path} answers {status} {answer}, which does not fit its description: {why}");
    }
}

/// The description of a call, found by its path.
fn call(method: &Method, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next().unwrap_or_default();
    let paths = DOCUMENT["paths"].as_object().expect("paths");
    let fits = |template: &str| match template.split_once('{') {
        None => template == path,
        Some((before, rest)) => {
            let after = rest.split_once('}').map_or("", |(_, after)| after);
            let name =
                path.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)).unwrap_or_default();
            let has_verb = name.rsplit('/').next().is_some_and(|last| last.contains(':'));
            !name.is_empty() && (!after.is_empty() || !has_verb)
        }
    };
    let (_, methods) = paths.iter().find(|(template, _)| fits(template))?;
    methods.get(method.as_str().to_lowercase())
}

/// Why a value does not fit a schema. A keyword that is not known here is an error too: it must not pass for one
/// that holds.
fn fits(value: &Value, schema: &Value) -> Result<(), String> {
    let Some(schema) = schema.as_object() else {
        return if *schema == true { Ok(()) } else { Err(format!("{value} fits nothing")) };
    };
    for (keyword, says) in schema {
        keyword_holds(value, keyword, says, schema).map_err(|why| format!("{why} ({keyword})"))?;
    }
    Ok(())
}

fn keyword_holds(
    value: &Value,
    keyword: &str,
    says: &Value,
    schema: &serde_json::Map<String, Value>,
) -> Result<(), String> {
    let holds = |holds: bool| if holds { Ok(()) } else { Err(format!("{value} is not {says}")) };
    let all = || says.as_array().into_iter().flatten();
    match keyword {
        // For people, or checked nowhere.
        "description" | "examples" | "title" | "default" | "format" | "contentEncoding" | "pattern" => Ok(()),
        "$ref" => {
            let name = says.as_str().and_then(|says| says.strip_prefix("#/components/schemas/"));
            fits(value, &DOCUMENT["components"]["schemas"][name.expect("a name")])
        }
        "type" if says.is_array() => holds(all().any(|one| is(value, one))),
        "type" => holds(is(value, says)),
        "enum" => holds(all().any(|one| one == value)),
        "const" => holds(says == value),
        "minimum" => holds(value.as_i64().is_none_or(|number| number >= says.as_i64().expect("a number"))),
        "maximum" => holds(value.as_u64().is_none_or(|number| number <= says.as_u64().expect("a number"))),
        "minLength" => {
            holds(value.as_str().is_none_or(|text| text.chars().count() as u64 >= says.as_u64().unwrap()))
        }
        "maxLength" => {
            holds(value.as_str().is_none_or(|text| text.chars().count() as u64 <= says.as_u64().unwrap()))
        }
        "required" => {
            let missing = all().find(|name| value.get(name.as_str().expect("a name")).is_none());
            missing.map_or(Ok(()), |name| Err(format!("{name} is missing")))
        }
        "properties" => {
            for (name, schema) in says.as_object().expect("fields") {
                if let Some(field) = value.get(name) {
                    fits(field, schema).map_err(|why| format!("{name}: {why}"))?;
                }
            }
            Ok(())
        }
        "additionalProperties" => {
            assert_eq!(says, false, "only this is used");
            let known = schema.get("properties").and_then(Value::as_object);
            let fields = value.as_object().into_iter().flat_map(|fields| fields.keys());
            let unknown =
                fields.into_iter().find(|name| known.is_none_or(|known| !known.contains_key(*name)));
            unknown.map_or(Ok(()), |name| Err(format!("{name} is not described")))
        }
        "items" => value.as_array().into_iter().flatten().try_for_each(|item| fits(item, says)),
        "allOf" => all().try_for_each(|one| fits(value, one)),
        "anyOf" => holds(all().any(|one| fits(value, one).is_ok())),
        "oneOf" => holds(all().filter(|one| fits(value, one).is_ok()).count() == 1),
        other => Err(format!("{other} is not known here")),
    }
}

fn is(value: &Value, of: &Value) -> bool {
    match of.as_str().expect("a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other} is no type"),
    }
}

#[test]
fn what_does_not_fit_is_noticed() {
    let schema = |name: &str| DOCUMENT["components"]["schemas"][name].clone();
    let taken = serde_json::json!({"resource": "a", "token": 7});
    assert_eq!(fits(&taken, &schema("TokenTaken")), Ok(()));
    for wrong in [
        serde_json::json!({"resource": "a"}),
        serde_json::json!({"resource": "a", "token": "7"}),
        serde_json::json!({"resource": "a", "token": 0}),
        serde_json::json!({"resource": 1, "token": 7}),
        serde_json::json!([]),
    ] {
        assert!(fits(&wrong, &schema("TokenTaken")).is_err(), "{wrong}");
    }
    assert!(fits(&serde_json::json!({"released": true, "x": 1}), &schema("Nothing")).is_err());
    assert!(fits(&taken, &serde_json::json!({"madeUp": 1})).is_err(), "a keyword that nobody checks");
}
