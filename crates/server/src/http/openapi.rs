pub(super) async fn page() -> axum::Json<serde_json::Value> {
    axum::Json(serde_json::json!({}))
}
