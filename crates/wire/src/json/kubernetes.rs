//! A lease in the shape of `coordination.k8s.io/v1`: for eyes and scripts that read that shape already. A view and
//! nothing more: nothing is read back from it, and its calendar times are made from durations for whoever looks at
//! them. No holder may count with them.

use serde::{Deserialize, Serialize};
use tenure_core::WallTime;

use super::answers::Lease;
use crate::words::calendar;

/// A lease as Kubernetes writes it down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct KubernetesLease {
    /// `coordination.k8s.io/v1`.
    pub api_version: String,
    /// `Lease`.
    pub kind: String,
    /// What it is called.
    pub metadata: KubernetesMetadata,
    /// Who holds it, and since when.
    pub spec: KubernetesSpec,
}

/// What a lease is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KubernetesMetadata {
    /// The resource, as it is: with slashes, which no object of Kubernetes has in its name.
    pub name: String,
    /// What the shape has no field for: the fencing token, as text.
    pub annotations: KubernetesAnnotations,
}

/// What the shape has no field for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KubernetesAnnotations {
    /// The newest token; absent before the first grant.
    #[serde(rename = "tenure/token", default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// Who holds a lease, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct KubernetesSpec {
    /// Who was granted it last; `null` if it is free.
    pub holder_identity: Option<String>,
    /// The TTL, rounded up to whole seconds; `null` if it is free.
    pub lease_duration_seconds: Option<u64>,
    /// When it was granted.
    pub acquire_time: Option<String>,
    /// When its session was last renewed, as the store counts.
    pub renew_time: Option<String>,
    /// How often it has gone from one holder to another: the first grant is none.
    pub lease_transitions: u64,
}

impl KubernetesLease {
    /// The view of a lease as it is `now`; of several holders the newest is shown.
    pub fn of(lease: &Lease, now: WallTime) -> KubernetesLease {
        let newest = lease.holders.iter().max_by_key(|holder| holder.token);
        let ago = |ms: u64| {
            let then = WallTime::from_unix_millis(now.as_unix_millis().saturating_sub(ms));
            // Kubernetes writes microseconds; milliseconds are what is known.
            calendar(then).replace('Z', "000Z")
        };
        KubernetesLease {
            api_version: "coordination.k8s.io/v1".into(),
            kind: "Lease".into(),
            metadata: KubernetesMetadata {
                name: lease.resource.clone(),
                annotations: KubernetesAnnotations { token: lease.token.map(|token| token.to_string()) },
            },
            spec: KubernetesSpec {
                holder_identity: newest.map(|holder| holder.holder.clone()),
                lease_duration_seconds: newest.map(|holder| holder.ttl_ms.div_ceil(1_000)),
                acquire_time: newest.map(|holder| ago(holder.held_ms)),
                renew_time: newest.map(|holder| ago(holder.ttl_ms.saturating_sub(holder.remaining_ms))),
                lease_transitions: lease.generation.saturating_sub(1),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holders: serde_json::Value) -> Lease {
        let lease = serde_json::json!({
            "resource": "settlement/cron", "state": "held", "kind": null, "holders": holders, "holder": null,
            "token": 7, "generation": 3, "remaining_ms": null, "waiters": [],
        });
        serde_json::from_value(lease).expect("a lease")
    }

    #[test]
    fn a_held_lease_has_all_five_fields() {
        let held = lease(serde_json::json!([{
            "session_number": 1, "holder": "node-a", "mode": "exclusive", "slot": null, "token": 7, "generation": 3,
            "remaining_ms": 8_900, "ttl_ms": 9_500, "held_ms": 61_000,
        }]));
        let view = KubernetesLease::of(&held, WallTime::from_unix_millis(1_767_225_599_123));
        let shown = serde_json::to_value(view).expect("text and numbers");
        let spec = serde_json::json!({
            "holderIdentity": "node-a", "leaseDurationSeconds": 10, "acquireTime": "2025-12-31T23:58:58.123000Z",
            "renewTime": "2025-12-31T23:59:58.523000Z", "leaseTransitions": 2,
        });
        assert_eq!(shown["spec"], spec);
        assert_eq!(shown["metadata"]["annotations"]["tenure/token"], "7");
        assert_eq!(
            (&shown["apiVersion"], &shown["kind"]),
            (&"coordination.k8s.io/v1".into(), &"Lease".into())
        );
    }

    #[test]
    fn a_free_lease_has_no_holder_and_keeps_its_count() {
        let view = KubernetesLease::of(&lease(serde_json::json!([])), WallTime::from_unix_millis(0));
        assert_eq!(view.spec.holder_identity, None);
        assert_eq!((view.spec.lease_duration_seconds, view.spec.renew_time), (None, None));
        assert_eq!(view.spec.lease_transitions, 2);
    }
}
