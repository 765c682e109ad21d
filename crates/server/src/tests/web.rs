//! Attacks by a web page in an operator's browser. A browser says where a page came from and which name it used; a page
//! cannot make it lie. The names of the tests are those in `cargo xtask attacks`.

use super::*;

async fn sent(node: &Node, method: Method, path: &str, headers: &[(&str, &str)]) -> Reply {
    let mut request = Request::builder().method(method.clone()).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = match method {
        Method::GET => Body::empty(),
        _ => Body::from(json!({"holder": "evil", "ttl_ms": 60_000}).to_string()),
    };
    node.reply(request.body(body).unwrap()).await
}

/// The page and the data behind it, asked for as a foreign page would.
async fn fails(node: &Node, headers: &[(&str, &str)]) {
    sent(node, Method::POST, "/v1/leases/a:acquire", headers).await.refused("foreign_origin");
    sent(node, Method::GET, "/v1/leases", headers).await.refused("foreign_origin");
    sent(node, Method::GET, "/v1/watch", headers).await.refused("foreign_origin");
    node.get("/v1/leases/a").await.refused("not_found");
}

/// A name of the attacker's that is pointed at this machine.
#[tokio::test]
async fn attack_web_rebinding() {
    let node = Node::start().await;
    for host in ["evil.example", "evil.example:7400", "127.0.0.1.evil.example", "localhost.evil.example"] {
        fails(&node, &[("host", host)]).await;
        fails(&node, &[("host", host), ("origin", &format!("http://{host}"))]).await;
        sent(&node, Method::GET, "/", &[("host", host)]).await.refused("foreign_origin");
    }
}

#[tokio::test]
async fn attack_web_foreign_origin() {
    let node = Node::start().await;
    for origin in ["http://evil.example", "http://127.0.0.1:7401", "https://127.0.0.1.evil.example"] {
        fails(&node, &[("host", "127.0.0.1:7400"), ("origin", origin)]).await;
    }
}

/// A sandboxed frame, a file, a redirect: the browser hides where it came from.
#[tokio::test]
async fn attack_web_null_origin() {
    let node = Node::start().await;
    fails(&node, &[("host", "127.0.0.1:7400"), ("origin", "null")]).await;
}

/// The dashboard in a frame of somebody's page, under a button of theirs.
#[tokio::test]
async fn attack_web_frame() {
    let node = Node::start().await;
    for path in ["/", "/web/app.js", "/web/style.css"] {
        let page = sent(&node, Method::GET, path, &[("host", "127.0.0.1:7400")]).await;
        let policy = page.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(page.headers["x-content-type-options"], "nosniff");
    }
}

/// Pictures, scripts and styles of a foreign page are asked for without an `Origin`.
#[tokio::test]
async fn attack_web_cross_site_get() {
    let node = Node::start().await;
    for site in ["cross-site", "same-site"] {
        let headers = [("host", "127.0.0.1:7400"), ("sec-fetch-site", site)];
        fails(&node, &headers).await;
        for path in ["/v1/leases", "/v1/sessions", "/v1/cluster", "/v1/events"] {
            sent(&node, Method::GET, path, &headers).await.refused("foreign_origin");
        }
        // A link to the dashboard is nothing of the kind.
        assert_eq!(sent(&node, Method::GET, "/", &headers).await.status, StatusCode::OK);
    }
    for site in ["same-origin", "none"] {
        sent(&node, Method::GET, "/v1/leases", &[("host", "127.0.0.1:7400"), ("sec-fetch-site", site)])
            .await
            .ok();
    }
    // What could be read is never readable: no answer names another site.
    let answer = sent(&node, Method::GET, "/v1/leases", &[("host", "127.0.0.1:7400")]).await;
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
}
