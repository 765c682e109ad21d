//! Bodies of HTTP requests. Every input is read as every kind of body, so that none lacks seeds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::de::DeserializeOwned;
use tenure_core::{Command, RegisterKey, ResourceName, Secret, SessionId, SessionNumber};
use tenure_fuzz::{acceptable, report, seeds};
use tenure_wire::{ApiError, json};

/// Reads the bytes as one kind of body, and makes of it what the server would.
fn read<T: DeserializeOwned>(bytes: &[u8], command: impl FnOnce(T) -> Result<Command, ApiError>) {
    match json::parse::<T>(bytes).and_then(command) {
        Ok(command) => acceptable(command),
        Err(error) => report(error),
    }
}

/// Reads the bytes as a body that becomes no command.
fn read_only<T: DeserializeOwned>(bytes: &[u8]) {
    if let Err(error) = json::parse::<T>(bytes) {
        report(error);
    }
}

fuzz_target!(init: seeds::write(seeds::bodies()), |bytes: &[u8]| {
    let secret = Secret::new([7; 16]);
    let id = SessionId { number: SessionNumber::new(1), secret };
    let resource: ResourceName = "settlement/cron".parse().expect("a good name");
    let key: RegisterKey = "cursor".parse().expect("a good key");

    read(bytes, |body: json::OpenSession| body.command(secret));
    read(bytes, |body: json::CloseSession| Ok(body.command(id)));
    read(bytes, |body: json::Seen| Ok(body.command(id)));
    read(bytes, |body: json::Paused| Ok(body.command(id)));
    for named in [None, Some(resource.clone())] {
        read(bytes, |body: json::Acquire| Ok(Command::Acquire(Box::new(body.acquire(named, secret)?))));
    }
    read(bytes, |body: json::Cancel| body.command());
    read(bytes, |body: json::Release| body.command(resource.clone()));
    read(bytes, |body: json::Transfer| body.command(resource.clone()));
    read(bytes, |body: json::Revoke| body.command(resource.clone()));
    read(bytes, |body: json::Arm| body.command(resource.clone()));
    read(bytes, |body: json::Refused| body.command(resource.clone()));
    read(bytes, |body: json::SetKind| Ok(body.command(resource.clone())));
    read(bytes, |body: json::PutRegister| body.command(key.clone(), None));
    read(bytes, |body: json::DeleteRegister| body.command(key.clone(), None));
    read(bytes, |body: json::WriteRegisters| body.command());
    read(bytes, |body: json::Rebind| body.command(key.clone()));

    read_only::<json::RenewSession>(bytes);
    read_only::<json::RenewSessions>(bytes);
    read_only::<json::IssueSequencer>(bytes);
    read_only::<json::CheckSequencer>(bytes);
    read_only::<json::StepDown>(bytes);
});
