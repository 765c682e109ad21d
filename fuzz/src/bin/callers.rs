//! What a caller presents to prove who it is: certificates and JSON web tokens, and the description of an issuer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_fuzz::seeds;
use tenure_server::fuzzing::{SAMPLE_KEYS, SAMPLE_TOKEN, certificate, issuer, token};

fn first_inputs() -> Vec<Vec<u8>> {
    let both = format!("{SAMPLE_KEYS}\0{SAMPLE_TOKEN}");
    let line = "ci,issuer=https://ci.example,audience=tenure,jwks=/f,algorithms=RS256+EdDSA";
    [SAMPLE_TOKEN, &both, line].map(|text| text.as_bytes().to_vec()).into()
}

fuzz_target!(init: seeds::write(first_inputs()), |bytes: &[u8]| {
    certificate(bytes);
    token(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        issuer(text);
    }
});
