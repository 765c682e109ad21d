//! AWS Signature Version 4 for the one kind of request that is sent here: a POST to `/` with a JSON body.
//! The SDK would do the same with a hundred more crates.

use aws_lc_rs::{digest, hmac};

/// Who signs. No text form: it must not reach a log.
#[derive(Clone)]
pub struct Credentials {
    /// The access key's id.
    pub access_key: String,
    /// The secret half.
    pub secret_key: String,
    /// Given with temporary credentials.
    pub session_token: Option<String>,
}

/// What a signature covers besides the body.
pub(super) struct Signed<'a> {
    pub host: &'a str,
    pub region: &'a str,
    pub target: &'a str,
    /// Calendar time, which AWS wants within minutes of its own; nothing here decides by it.
    pub unix_seconds: u64,
}

/// The headers to send: name and value.
pub(super) fn headers(
    credentials: &Credentials,
    signed: &Signed<'_>,
    body: &[u8],
) -> Vec<(&'static str, String)> {
    let stamp = stamp(signed.unix_seconds);
    let mut headers = vec![
        ("content-type", "application/x-amz-json-1.0".to_owned()),
        ("host", signed.host.to_owned()),
        ("x-amz-date", stamp.clone()),
    ];
    if let Some(token) = &credentials.session_token {
        headers.push(("x-amz-security-token", token.clone()));
    }
    headers.push(("x-amz-target", signed.target.to_owned())); // in alphabetical order, as they are signed
    let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let request = format!("POST\n/\n\n{lines}\n{names}\n{}", hash(body));
    let scope = format!("{}/{}/dynamodb/aws4_request", &stamp[..8], signed.region);
    let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", hash(request.as_bytes()));
    let key = key(&credentials.secret_key, &stamp[..8], signed.region, "dynamodb");
    let signature = hex(hmac::sign(&key, text.as_bytes()).as_ref());
    let credential = format!("{}/{scope}", credentials.access_key);
    headers.push((
        "authorization",
        format!("AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"),
    ));
    headers
}

fn key(secret: &str, day: &str, region: &str, service: &str) -> hmac::Key {
    let mut key = hmac::Key::new(hmac::HMAC_SHA256, format!("AWS4{secret}").as_bytes());
    for part in [day, region, service, "aws4_request"] {
        key = hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, part.as_bytes()).as_ref());
    }
    key
}

fn hash(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `20150830T123600Z`: the Gregorian calendar counted in eras of 400 years that begin in March.
fn stamp(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400 + 719_468, unix_seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year_of_era = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day_of_month:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_example_signs_the_same() {
        let key = key("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "20150830", "us-east-1", "iam");
        let text = "AWS4-HMAC-SHA256\n20150830T123600Z\n20150830/us-east-1/iam/aws4_request\n\
                    f536975d06c0309214f805bb90ccff089219ecd68b2577efef23edd43b7e1a59";
        assert_eq!(
            hex(hmac::sign(&key, text.as_bytes()).as_ref()),
            "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
        );
    }

    #[test]
    fn the_calendar_knows_leap_years() {
        assert_eq!(stamp(0), "19700101T000000Z");
        assert_eq!(stamp(951_782_400), "20000229T000000Z");
        assert_eq!(stamp(1_440_938_160), "20150830T123600Z");
        assert_eq!(stamp(4_107_542_399), "21000228T235959Z");
        assert_eq!(stamp(4_107_542_400), "21000301T000000Z");
    }
}
