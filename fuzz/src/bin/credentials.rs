//! Credential files, credentials and policies as people hand them over: what is accepted is written as it was read, and no
//! refusal repeats a secret.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_fuzz::seeds;
use tenure_wire::policy_text::{policy_text, read_policies};
use tenure_wire::{Bearer, CredentialFile};

fn first_inputs() -> Vec<Vec<u8>> {
    let bearer = format!("tenure_00010203ffeeddcc_{}", "a5".repeat(32));
    let file = format!(
        "tenure-credential: 1\nname: pay\nendpoints: a:1,b:2\nexpires: 2027-01-01T00:00:00.000Z\ncredential: {bearer}\n\n\
         -----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n"
    );
    let policy = "policy pay\nwho cred/a, jwt/k/*\non pay/, *\nmay hold, read\nholder self\nlimits leases=1 ttl_max=60s\n";
    [bearer, file, policy.to_owned()].map(String::into_bytes).into()
}

fuzz_target!(init: seeds::write(first_inputs()), |bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(bearer) = text.parse::<Bearer>() {
        assert_eq!(*bearer.reveal(), text, "a credential is written in one way");
    }
    match text.parse::<CredentialFile>() {
        Ok(file) => {
            assert_eq!(file.reveal().parse(), Ok(file.clone()), "what was read is written");
            assert!(!format!("{file:?}").contains(file.bearer.reveal().rsplit('_').next().expect("a secret")));
        }
        Err(error) => drop(error.to_string()),
    }
    match read_policies(text) {
        Ok(policies) => {
            let written: String = policies.iter().map(policy_text).collect();
            assert_eq!(read_policies(&written), Ok(policies), "what was read is written");
        }
        Err(error) => drop(error.to_string()),
    }
});
