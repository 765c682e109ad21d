//! Service discovery: an instance's entry is attached to its session and disappears with it. An entry that is
//! attached to nothing is never removed.

use tenure_client::{Client, Lease, Session};

use super::BoxError;

/// An instance that is listed for as long as its session lives.
pub struct Listed {
    session: Session,
    _place: Lease,
}

/// Lists an instance under its name. The name is leased, so that two instances cannot go by the same one; the
/// address is an ephemeral register, so that it is gone in the very entry in which the session ends.
pub async fn list(client: &Client, name: &str, address: &str) -> Result<Listed, BoxError> {
    let session = client.session().holder(address).open().await?;
    let place = session.acquire(name).await?;
    let permit = place.permit()?;
    session.registers().guarded(&permit).ephemeral().put(name, address).await?;
    drop(permit);
    Ok(Listed { session, _place: place })
}

/// The mistake: a plain register, written once and attached to nothing.
pub async fn list_carelessly(client: &Client, name: &str, address: &str) -> Result<(), BoxError> {
    client.registers().put(name, address).await?;
    Ok(())
}

/// Where an instance is, if it is.
pub async fn find(client: &Client, name: &str) -> Result<Option<String>, BoxError> {
    let value = client.registers().get(name).await?.value;
    Ok(value.map(|value| String::from_utf8_lossy(&value).into_owned()))
}

impl Listed {
    /// The instance ends in an orderly way.
    pub async fn leave(self) {
        self.session.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tenure_client::testing::Bench;

    #[tokio::test(start_paused = true)]
    async fn what_is_attached_goes_with_its_session_and_what_is_not_is_litter() {
        let bench = Bench::new();
        let (host, reader) = (bench.process(), bench.process());
        let listed = list(host.client(), "services/api/1", "10.0.0.7:80").await.expect("the name is free");
        list_carelessly(host.client(), "services/api/2", "10.0.0.8:80").await.expect("it is written");
        let twin = list(reader.client(), "services/api/1", "10.0.0.9:80").await;
        assert!(twin.is_err(), "two instances under one name");
        let found = async |name| find(reader.client(), name).await.expect("it can be read");
        assert_eq!(found("services/api/1").await.as_deref(), Some("10.0.0.7:80"));

        // Cut off and silent, as after a crash.
        host.cut();
        bench.pass(Duration::from_secs(60)).await;
        assert_eq!(found("services/api/1").await, None, "it outlived its session");
        assert_eq!(found("services/api/2").await.as_deref(), Some("10.0.0.8:80"), "nothing removes litter");
        drop(listed);

        host.heal();
        let listed = list(host.client(), "services/api/1", "10.0.0.7:80").await.expect("the name is free");
        listed.leave().await;
        assert_eq!(found("services/api/1").await, None);
    }
}
