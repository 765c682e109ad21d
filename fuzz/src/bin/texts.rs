//! Names, ids, scopes, keys, nonces, headers and durations, as people and programs type them: what is
//! accepted is written as it was read.
#![no_main]

// The binary that reads these has no library; the file stands alone.
#[path = "../../../crates/cli/src/args/duration.rs"]
#[allow(dead_code, reason = "of that file only the reading is fuzzed")]
mod duration;

use std::fmt::{Debug, Display};
use std::str::FromStr;

use libfuzzer_sys::fuzz_target;
use tenure_core::{FenceName, HolderName, RegisterKey, ResourceName, Scope, SessionId};
use tenure_fuzz::{report, seeds};
use tenure_wire::{Code, json, words};

/// What is read shows itself as a text that reads the same.
fn shown_alike<T: FromStr<Err: Display> + Display + PartialEq + Debug>(text: &str) {
    match text.parse::<T>() {
        Ok(value) => {
            let again = value.to_string().parse::<T>();
            assert_eq!(again.ok().as_ref(), Some(&value), "{text:?} is shown as something else");
        }
        Err(error) => drop(error.to_string()),
    }
}

fuzz_target!(init: seeds::write(seeds::texts()), |bytes: &[u8]| {
    let _ = RegisterKey::try_from(bytes).map(|key| key.to_string());
    let _ = words::nonce(bytes).map_err(report);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    shown_alike::<ResourceName>(text);
    shown_alike::<HolderName>(text);
    shown_alike::<FenceName>(text);
    shown_alike::<Scope>(text);
    shown_alike::<SessionId>(text);
    let _ = text.parse::<Code>().map(|code| (code.http_status(), code.as_str()));
    let _ = words::nonce_from_hex(text).map_err(report);
    let _ = json::guard_from_header(text).map_err(report);
    let _ = text.parse::<duration::Length>().map(|length| (length.millis(), length.to_string()));
});
