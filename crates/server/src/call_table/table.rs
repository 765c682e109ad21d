//! Every call of a node, one row each. To add one, add a row and its function.
//!
//! What a row means is in `mod.rs`; what a call does is in `crate::calls` and in the functions named here.

use tenure_core::Command;

use crate::{grpc, http};

crate::calls! {
    /// Every call of a node.
    pub(crate) enum Call {
        // Sessions.
        SessionsOpen = "sessions.open", Hold, Open {
            http(POST "/v1/sessions" => http::sessions::open)
            grpc(unary "/tenure.v1.Sessions/Open" => grpc::sessions::open)
        }
        SessionsRenew = "sessions.renew", Hold, Renewal {
            http(POST "/v1/session:renew" => http::sessions::renew)
            http(POST "/v1/sessions:renew" => http::sessions::renew_many)
            deprecated(POST "/v1/sessions/{session}:renew" => http::sessions::renew)
            grpc(unary "/tenure.v1.Sessions/Renew" => grpc::sessions::renew)
        }
        SessionsClose = "sessions.close", Hold, Command {
            http(DELETE "/v1/session" => http::sessions::close)
            deprecated(DELETE "/v1/sessions/{session}" => http::sessions::close)
            grpc(unary "/tenure.v1.Sessions/Close" => grpc::sessions::close)
        }
        SessionsGet = "sessions.get", Hold, Read {
            http(GET "/v1/session" => http::sessions::get)
            deprecated(GET "/v1/sessions/{session}" => http::sessions::get)
            grpc(unary "/tenure.v1.Sessions/Get" => grpc::sessions::get)
        }
        SessionsList = "sessions.list", Read, Read {
            http(GET "/v1/sessions" => http::sessions::list)
            grpc(unary "/tenure.v1.Sessions/List" => grpc::sessions::list)
        }
        SessionsSeen = "sessions.seen", Hold, Command {
            http(POST "/v1/session:seen" => http::sessions::seen)
            deprecated(POST "/v1/sessions/{session}:seen" => http::sessions::seen)
            grpc(unary "/tenure.v1.Sessions/Seen" => grpc::sessions::seen)
        }
        SessionsReportPause = "sessions.report_pause", Hold, Command {
            http(POST "/v1/session:paused" => http::sessions::paused)
            deprecated(POST "/v1/sessions/{session}:paused" => http::sessions::paused)
            grpc(unary "/tenure.v1.Sessions/ReportPause" => grpc::sessions::report_pause)
        }
        SessionsEvents = "sessions.events", Hold, Watch {
            http(GET "/v1/sessions:events" => http::session_events::events)
        }

        // Session streams: their frames are commands, each under the call that `Call::of` names.
        StreamCommands = "stream.commands", Hold, Stream {
            grpc(bidi "/tenure.v1.Stream/Commands" => grpc::stream::commands)
        }
        StreamRenewals = "stream.renewals", Hold, RenewalStream {
            grpc(bidi "/tenure.v1.Stream/Renewals" => grpc::stream::renewals)
        }

        // Leases.
        LeasesAcquire = "leases.acquire", Hold, Wait {
            http(POST "/v1/leases/{*resource}:acquire" => http::leases::acquire)
            http(POST "/v1/leases:acquire" => http::leases::acquire_many)
            grpc(unary "/tenure.v1.Leases/Acquire" => grpc::leases::acquire)
        }
        LeasesCancel = "leases.cancel", Hold, Command {
            http(POST "/v1/leases:cancel" => http::leases::cancel)
            grpc(unary "/tenure.v1.Leases/Cancel" => grpc::leases::cancel)
        }
        LeasesRelease = "leases.release", Hold, Command {
            http(POST "/v1/leases/{*resource}:release" => http::leases::release)
            grpc(unary "/tenure.v1.Leases/Release" => grpc::leases::release)
        }
        LeasesTransfer = "leases.transfer", Hold, Command {
            http(POST "/v1/leases/{*resource}:transfer" => http::leases::transfer)
            grpc(unary "/tenure.v1.Leases/Transfer" => grpc::leases::transfer)
        }
        LeasesRevoke = "leases.revoke", Manage, Command {
            http(POST "/v1/leases/{*resource}:revoke" => http::leases::revoke)
            grpc(unary "/tenure.v1.Leases/Revoke" => grpc::leases::revoke)
        }
        LeasesBarrier = "leases.barrier", Manage, Command {
            http(POST "/v1/leases/{*resource}:barrier" => http::leases::barrier)
            grpc(unary "/tenure.v1.Leases/Barrier" => grpc::leases::barrier)
        }
        LeasesGet = "leases.get", Read, Read {
            http(GET "/v1/leases/{*resource}" => http::leases::get)
            grpc(unary "/tenure.v1.Leases/Get" => grpc::leases::get)
        }
        LeasesList = "leases.list", Read, Read {
            http(GET "/v1/leases" => http::leases::list)
            grpc(unary "/tenure.v1.Leases/List" => grpc::leases::list)
        }
        LeasesHistory = "leases.history", Read, Read {
            http(GET "/v1/history/{*resource}" => http::leases::history)
            http(GET "/v1/history" => http::leases::histories)
            grpc(unary "/tenure.v1.Leases/History" => grpc::leases::history)
        }

        // Events.
        WatchWatch = "watch.watch", Read, Watch {
            http(GET "/v1/watch" => http::watch::watch)
            grpc(server_streaming "/tenure.v1.Watch/Watch" => grpc::watch::watch)
        }
        WatchEvents = "watch.events", Read, Read {
            http(GET "/v1/events" => http::watch::events)
        }

        // Registers.
        RegistersWrite = "registers.write", Write, Command {
            http(PUT "/v1/registers/{*key}" => http::registers::put)
            http(DELETE "/v1/registers/{*key}" => http::registers::delete)
            http(POST "/v1/registers:write" => http::registers::write)
            grpc(unary "/tenure.v1.Registers/Write" => grpc::registers::write)
        }
        RegistersGet = "registers.get", Read, Read {
            http(GET "/v1/registers/{*key}" => http::registers::get)
            grpc(unary "/tenure.v1.Registers/Get" => grpc::registers::get)
        }
        RegistersList = "registers.list", Read, Read {
            http(GET "/v1/registers" => http::registers::list)
            grpc(unary "/tenure.v1.Registers/List" => grpc::registers::list)
        }

        // Fences.
        FencesArm = "fences.arm", Hold, Command {
            http(POST "/v1/fences/{*resource}:arm" => http::fences::arm)
            grpc(unary "/tenure.v1.Fences/Arm" => grpc::fences::arm)
        }
        FencesReportRefused = "fences.report_refused", Hold, Command {
            http(POST "/v1/fences/{*resource}:refused" => http::fences::report_refused)
            grpc(unary "/tenure.v1.Fences/ReportRefused" => grpc::fences::report_refused)
        }
        FencesRemove = "fences.remove", Manage, Command {
            grpc(unary "/tenure.v1.Fences/Remove" => grpc::fences::remove)
        }
        FencesList = "fences.list", Read, Read {
            http(GET "/v1/fences/{*resource}" => http::fences::get)
            grpc(unary "/tenure.v1.Fences/List" => grpc::fences::list)
        }

        // Sequencers.
        SequencersIssue = "sequencers.issue", Hold, Command {
            http(POST "/v1/sequencers" => http::sequencers::issue)
            grpc(unary "/tenure.v1.Sequencers/Issue" => grpc::sequencers::issue)
        }
        SequencersCheck = "sequencers.check", Read, Read {
            http(POST "/v1/sequencers:check" => http::sequencers::check)
            grpc(unary "/tenure.v1.Sequencers/Check" => grpc::sequencers::check)
        }
        SequencersRotate = "sequencers.rotate", Operate, Command {
            http(POST "/v1/sequencers:rotate" => http::sequencers::rotate)
        }
        SequencersWithdraw = "sequencers.withdraw", Operate, Command {
            http(POST "/v1/sequencers:withdraw" => http::sequencers::withdraw)
        }
        SequencersKeys = "sequencers.keys", Public, Page {
            http(GET "/.well-known/jwks.json" => http::sequencers::keys)
        }

        // The cluster.
        ClusterStatus = "cluster.status", Observe, Read {
            http(GET "/v1/cluster" => http::pages::cluster)
            grpc(unary "/tenure.v1.Cluster/Status" => grpc::cluster::status)
        }
        ClusterSetKind = "cluster.set_kind", Manage, Command {
            http(POST "/v1/leases/{*resource}:kind" => http::leases::set_kind)
            grpc(unary "/tenure.v1.Cluster/SetKind" => grpc::cluster::set_kind)
        }
        ClusterRebind = "cluster.rebind", Manage, Command {
            http(POST "/v1/registers/{*key}:rebind" => http::registers::rebind)
            grpc(unary "/tenure.v1.Cluster/Rebind" => grpc::cluster::rebind)
        }
        ClusterStepDown = "cluster.step_down", Operate, Command {
            grpc(unary "/tenure.v1.Cluster/StepDown" => grpc::cluster::step_down)
        }
        ClusterAdd = "cluster.add", Operate, Command {
            grpc(unary "/tenure.v1.Cluster/Add" => grpc::cluster::add)
        }
        ClusterRemove = "cluster.remove", Operate, Command {
            grpc(unary "/tenure.v1.Cluster/Remove" => grpc::cluster::remove)
        }
        ClusterUpgrade = "cluster.upgrade", Operate, Command {
            grpc(unary "/tenure.v1.Cluster/Upgrade" => grpc::cluster::upgrade)
        }
        ClusterBackup = "cluster.backup", Operate, Read {
            grpc(server_streaming "/tenure.v1.Cluster/Backup" => grpc::cluster::backup)
        }
        ClusterRestore = "cluster.restore", Operate, Restore {
            grpc(client_streaming "/tenure.v1.Cluster/Restore" => grpc::cluster::restore)
        }

        // Who may do what. What a policy gives is judged when the command is applied.
        AuthPutCredential = "auth.put_credential", Grant, Command {
            http(POST "/v1/auth/credentials" => http::auth::put_credential)
            grpc(unary "/tenure.v1.Auth/PutCredential" => grpc::auth::put_credential)
        }
        // Whoever has a credential may give it up, so this needs no right before it is applied.
        AuthRevokeCredential = "auth.revoke_credential", Public, Command {
            http(DELETE "/v1/auth/credentials/{credential}" => http::auth::revoke_credential)
            grpc(unary "/tenure.v1.Auth/RevokeCredential" => grpc::auth::revoke_credential)
        }
        AuthCredentials = "auth.credentials", Grant, Read {
            http(GET "/v1/auth/credentials" => http::auth::credentials)
            grpc(unary "/tenure.v1.Auth/ListCredentials" => grpc::auth::credentials)
        }
        AuthPutPolicy = "auth.put_policy", Grant, Command {
            http(PUT "/v1/auth/policies/{policy}" => http::auth::put_policy)
            grpc(unary "/tenure.v1.Auth/PutPolicy" => grpc::auth::put_policy)
        }
        AuthRemovePolicy = "auth.remove_policy", Grant, Command {
            http(DELETE "/v1/auth/policies/{policy}" => http::auth::remove_policy)
            grpc(unary "/tenure.v1.Auth/RemovePolicy" => grpc::auth::remove_policy)
        }
        AuthPolicies = "auth.policies", Grant, Read {
            http(GET "/v1/auth/policies" => http::auth::policies)
            grpc(unary "/tenure.v1.Auth/ListPolicies" => grpc::auth::policies)
        }
        AuthEnforce = "auth.enforce", Grant, Command {
            http(POST "/v1/auth:enforce" => http::auth::enforce)
            grpc(unary "/tenure.v1.Auth/Enforce" => grpc::auth::enforce)
        }
        // Everybody may ask about themselves.
        AuthWhoAmI = "auth.whoami", Public, Read {
            http(GET "/v1/auth/whoami" => http::auth::who_am_i)
            grpc(unary "/tenure.v1.Auth/WhoAmI" => grpc::auth::who_am_i)
        }
        AuthExplain = "auth.explain", Public, Read {
            http(POST "/v1/auth:explain" => http::auth::explain)
            grpc(unary "/tenure.v1.Auth/Explain" => grpc::auth::explain)
        }

        // The node itself.
        Probe = "probe", Public, Check {
            http(POST "/v1/probe/{number}" => http::pages::probe)
        }
        Health = "health", Public, Check {
            service("grpc.health.v1.Health")
        }
        Reflection = "reflection", Public, Check {
            service("grpc.reflection.v1.ServerReflection")
            service("grpc.reflection.v1alpha.ServerReflection")
        }
        PageMetrics = "page.metrics", Observe, Page {
            http(GET "/metrics" => http::pages::metrics)
        }
        PageHealth = "page.health", Public, Page {
            http(GET "/healthz" => http::pages::healthz)
            http(GET "/readyz" => http::pages::readyz)
        }
        PageOpenApi = "page.openapi", Public, Page {
            http(GET "/openapi.json" => http::openapi::page)
        }
        PageDashboard = "page.dashboard", Public, Page {
            http(GET "/" => http::dashboard::file)
            http(GET "/web/{*file}" => http::dashboard::file)
        }
    }
}

impl Call {
    /// The call under which a command goes into the log, from whichever surface it came: a plain call, a frame of a
    /// session stream, or another node. `None` for what only a leader gives, by itself: nobody can ask for it in
    /// these words.
    pub fn of(command: &Command) -> Option<Call> {
        Some(match command {
            Command::Open(_) => Call::SessionsOpen,
            Command::Close { .. } => Call::SessionsClose,
            Command::Seen { .. } => Call::SessionsSeen,
            Command::Paused { .. } => Call::SessionsReportPause,
            Command::Acquire(_) => Call::LeasesAcquire,
            Command::Cancel { .. } | Command::CancelNonce { .. } | Command::Undo { .. } => Call::LeasesCancel,
            Command::Release { .. } => Call::LeasesRelease,
            Command::Transfer { .. } => Call::LeasesTransfer,
            Command::Revoke { .. } => Call::LeasesRevoke,
            Command::Barrier { .. } => Call::LeasesBarrier,
            Command::Write(_) => Call::RegistersWrite,
            Command::Arm { .. } => Call::FencesArm,
            Command::Refused { .. } => Call::FencesReportRefused,
            Command::RemoveFence { .. } => Call::FencesRemove,
            Command::SetKind { .. } => Call::ClusterSetKind,
            Command::Rebind { .. } => Call::ClusterRebind,
            Command::Restore { .. }
            | Command::RestoreBegin(_)
            | Command::RestorePiece(_)
            | Command::RestoreCommit { .. } => Call::ClusterRestore,
            Command::As(attributed) => return Call::of(&attributed.command),
            Command::PutCredential(_) => Call::AuthPutCredential,
            Command::RevokeCredential { .. } => Call::AuthRevokeCredential,
            Command::PutPolicy(_) => Call::AuthPutPolicy,
            Command::RemovePolicy { .. } => Call::AuthRemovePolicy,
            Command::SetEnforced { .. } => Call::AuthEnforce,
            Command::PublishKey { .. } => Call::SequencersRotate,
            Command::WithdrawKey { .. } => Call::SequencersWithdraw,
            Command::BecameLeader { .. } | Command::Configure(_) | Command::Upgrade { .. } => return None,
        })
    }
}
