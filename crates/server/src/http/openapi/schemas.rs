//! The shapes of bodies, answers and queries, derived from the types that the handlers read and write: fields,
//! which of them are required, and their descriptions, which are the types' own comments. What a type cannot say
//! follows from a field's name, because a name means one thing everywhere: `RULES`.

use schemars::JsonSchema;
use schemars::generate::{Contract, SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};
use tenure_core::EndReason;

const DEFINITIONS: &str = "/components/schemas";

/// Collects the shapes that the document refers to.
pub(super) struct Schemas {
    /// As a type is read.
    read: SchemaGenerator,
    /// As a type is written.
    written: SchemaGenerator,
}

impl Schemas {
    pub fn new() -> Schemas {
        let generator = |contract: Contract| {
            let mut settings = SchemaSettings::draft2020_12();
            settings.definitions_path = DEFINITIONS.into();
            settings.meta_schema = None;
            settings.contract = contract;
            settings.into_generator()
        };
        Schemas { read: generator(Contract::Deserialize), written: generator(Contract::Serialize) }
    }

    /// A body of a request.
    pub fn body<T: JsonSchema>(&mut self) -> Value {
        self.read.subschema_for::<T>().to_value()
    }

    /// An answer.
    pub fn answer<T: JsonSchema>(&mut self) -> Value {
        self.written.subschema_for::<T>().to_value()
    }

    /// The fields of a query: name, description, shape.
    pub fn query<T: JsonSchema>(&mut self) -> Vec<(String, String, Value)> {
        let mut shape = T::json_schema(&mut self.read).to_value();
        finish(&mut shape, Way::Read);
        let Some(fields) = shape["properties"].as_object_mut() else { return Vec::new() };
        let field = |(name, shape): (&String, &mut Value)| {
            let description = shape.as_object_mut().and_then(|shape| shape.remove("description"));
            let description =
                description.and_then(|text| Some(text.as_str()?.to_owned())).unwrap_or_default();
            // A parameter that is left out is not `null`.
            without_null(shape);
            (name.clone(), description, shape.clone())
        };
        fields.iter_mut().map(field).collect()
    }

    /// Everything that was referred to, by name.
    pub fn finish(mut self) -> Value {
        let mut all: Map<String, Value> = Map::new();
        let ways = [
            (self.written.take_definitions(true), Way::Written),
            (self.read.take_definitions(true), Way::Read),
        ];
        for (definitions, way) in ways {
            for (name, mut shape) in definitions {
                finish(&mut shape, way);
                // What is both read and written is read more strictly: unknown fields are refused.
                all.insert(name, shape);
            }
        }
        all.into()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Written,
}

/// What a field's name says beyond its type, where the rule's type is the field's: in requests, and in both ways.
const RULES: &[(&[&str], Rule)] = &[
    (&["session"], Rule::both("string", session)),
    (&["token", "presented", "seen"], Rule::both("integer", token)),
    (&["why", "notice"], Rule::both("string", why)),
    (&["at", "from", "to", "refused_at", "acquireTime", "renewTime"], Rule::both("string", calendar)),
    (&["holder"], Rule::requests("string", holder)),
    (&["resource"], Rule::requests("string", resource)),
    (&["fence"], Rule::requests("string", fence)),
    (&["ttl_ms"], Rule::requests("integer", ttl)),
    (&["nonce"], Rule::requests("string", nonce)),
    (&["reason"], Rule::requests("string", reason)),
    (&["key_base64", "value_base64"], Rule::requests("string", base64)),
    (&["slots", "semaphore"], Rule::both("integer", slots)),
];

struct Rule {
    of: &'static str,
    answers_too: bool,
    says: fn() -> Value,
}

impl Rule {
    const fn both(of: &'static str, says: fn() -> Value) -> Rule {
        Rule { of, answers_too: true, says }
    }

    const fn requests(of: &'static str, says: fn() -> Value) -> Rule {
        Rule { of, answers_too: false, says }
    }
}

pub(super) fn session() -> Value {
    json!({"pattern": "^[0-9]+-[0-9a-f]{32}$", "examples": ["7-9f86d081884c7d659a2feaa0c55ad015"]})
}

pub(super) fn resource() -> Value {
    json!({"minLength": 1, "maxLength": 512, "examples": ["settlement/cron"]})
}

fn token() -> Value {
    json!({"minimum": 1, "maximum": tenure_core::Token::MAX.get()})
}

fn why() -> Value {
    let reasons: Vec<&str> = EndReason::ALL.iter().map(|why| why.as_str()).collect();
    json!({"enum": reasons})
}

fn calendar() -> Value {
    json!({"format": "date-time"})
}

fn holder() -> Value {
    json!({"minLength": 1, "maxLength": 256, "examples": ["node-a"]})
}

fn fence() -> Value {
    json!({"minLength": 1, "maxLength": 128, "examples": ["postgres:orders"]})
}

fn ttl() -> Value {
    let limits = tenure_core::Limits::default();
    let millis = tenure_wire::words::millis;
    json!({"minimum": millis(limits.ttl_min), "maximum": millis(limits.ttl_max), "examples": [10_000]})
}

fn nonce() -> Value {
    json!({"pattern": "^([0-9a-fA-F]{2}){16,}$"})
}

fn reason() -> Value {
    json!({"maxLength": tenure_wire::json::Revoke::REASON_BYTES_MAX})
}

fn base64() -> Value {
    json!({
        "contentEncoding": "base64",
        "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    })
}

fn slots() -> Value {
    json!({"minimum": 1, "maximum": tenure_core::Limits::default().slots_max})
}

/// Brings a shape, and all that are in it, to what the document says.
fn finish(shape: &mut Value, way: Way) {
    match shape {
        Value::Object(object) => {
            if object.get("format") == Some(&json!("uint32")) {
                object.insert("maximum".into(), u32::MAX.into());
            }
            // The formats of Rust's integers say nothing that the bounds do not.
            if object.get("format").and_then(Value::as_str).is_some_and(|format| format.contains("int")) {
                object.remove("format");
            }
            let required: Vec<Value> =
                object.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
            if let Some(Value::Object(fields)) = object.get_mut("properties") {
                for (name, field) in fields {
                    // An answer leaves a field out rather than say `null`.
                    if way == Way::Written && !required.iter().any(|required| required == name) {
                        without_null(field);
                    }
                    name_says(name, field, way);
                }
            }
            object.values_mut().for_each(|inner| finish(inner, way));
        }
        Value::Array(all) => all.iter_mut().for_each(|inner| finish(inner, way)),
        _ => {}
    }
}

fn name_says(name: &str, field: &mut Value, way: Way) {
    let Some(object) = field.as_object_mut() else { return };
    let is = |of: &str| match object.get("type") {
        Some(Value::String(one)) => one == of,
        Some(Value::Array(several)) => several.iter().any(|one| one == of),
        _ => false,
    };
    let rule = RULES
        .iter()
        .find(|(names, rule)| names.contains(&name) && is(rule.of) && (way == Way::Read || rule.answers_too));
    let Some((_, rule)) = rule else { return };
    let nullable = is("null");
    let Value::Object(says) = (rule.says)() else { unreachable!("a rule says an object") };
    for (key, mut value) in says {
        // A value that may be absent is in no list of words unless `null` is.
        if key == "enum" && nullable {
            value.as_array_mut().expect("a list").push(Value::Null);
        }
        object.insert(key, value);
    }
}

/// The shape of a value that is there.
fn without_null(field: &mut Value) {
    let Some(object) = field.as_object_mut() else { return };
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|one| one != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            object.insert("type".into(), one);
        }
    }
    if let Some(Value::Array(either)) = object.get_mut("anyOf") {
        either.retain(|one| one != &json!({"type": "null"}));
        if let [Value::Object(one)] = either.as_slice() {
            let one = one.clone();
            object.remove("anyOf");
            object.extend(one);
        }
    }
}
