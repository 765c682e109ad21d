//! The connection to a fenced PostgreSQL, and its refusals in the words of the command line.

use std::error::Error;
use std::time::Duration;

use tenure_fence::FenceError;
use tokio_postgres::{Client, Config, NoTls};

use crate::exit::Exit;
use crate::failure::Failure;

/// How long a database may take to accept a connection, where the caller does not say.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Which database.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// The PostgreSQL to look after, as a URL or as `host=… user=… dbname=…`. Without TLS: reach a remote one through a
    /// tunnel, or from its own host
    #[arg(long, value_name = "URL", env = "TENURE_FENCE_DATABASE", hide_env_values = true)]
    pub database: Config,
}

impl Args {
    /// Connects; the connection lives as long as this process.
    pub async fn connect(&self) -> Result<Client, Failure> {
        connect(&self.database).await
    }
}

/// Connects to one database.
pub async fn connect(config: &Config) -> Result<Client, Failure> {
    let mut config = config.clone();
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_WITHIN);
    }
    config.application_name("tenure fence");
    let (client, connection) = config.connect(NoTls).await.map_err(|error| {
        Failure::with_hint(
            Exit::Unreachable,
            format!("the database cannot be reached: {}", whole(&error)),
            "name it with --database, such as postgres://postgres@localhost/ledger",
        )
    })?;
    tokio::spawn(async move {
        // Whoever waits for an answer is told so by the answer.
        let _ = connection.await;
    });
    Ok(client)
}

/// What a fence said no to.
pub fn refused(error: FenceError) -> Failure {
    let exit = match &error {
        FenceError::Stale(_) => Exit::Stale,
        FenceError::Unavailable { .. } | FenceError::Unknown { .. } => Exit::Unreachable,
        _ => Exit::Other,
    };
    let missing = whole(&error).contains("tenure_fence");
    match (&error, missing) {
        (FenceError::Refused { .. }, true) if whole(&error).contains("does not exist") => Failure::with_hint(
            Exit::NotFound,
            "there is no fence in this database",
            "put one there with `tenure fence install TABLE… --resource R --role ROLE`",
        ),
        _ => Failure::said(exit, whole(&error)),
    }
}

/// An error with its causes: the driver says "db error" and keeps what the server said behind it.
fn whole(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        let told = match deeper.downcast_ref::<tokio_postgres::Error>().and_then(|error| error.as_db_error())
        {
            Some(said) => match said.hint() {
                Some(hint) => format!("{}\n  {hint}", said.message()),
                None => said.message().to_owned(),
            },
            None => deeper.to_string(),
        };
        if !text.contains(&told) {
            text = format!("{text}: {told}");
        }
        cause = deeper.source();
    }
    text
}
