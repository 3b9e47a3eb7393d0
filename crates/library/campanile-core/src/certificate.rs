//! The validity of client certificates, for warnings before they expire.

use std::time::{Duration, SystemTime};

use x509_cert::Certificate;
use x509_cert::der::DecodePem;

/// The longest time before its end at which a certificate expires soon.
const MAX_WARNING: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// Reads when the first certificate in PEM begins to be valid, and when it expires.
pub fn validity(pem: &[u8]) -> Option<(SystemTime, SystemTime)> {
    let (begin, end) = ("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----");
    let (_, body) = str::from_utf8(pem).ok()?.split_once(begin)?;
    let pem = format!("{begin}{}{end}", body.split_once(end)?.0);
    let validity = Certificate::from_pem(pem).ok()?.tbs_certificate.validity;
    Some((validity.not_before.to_system_time(), validity.not_after.to_system_time()))
}

/// Returns how long the certificate is still valid, if a fifth of its lifetime or less is left, and at
/// most 14 days. Certificates that are rotated live for days or for months.
pub fn soon_expiry(pem: &[u8], now: SystemTime) -> Option<Duration> {
    let (begins, expires) = validity(pem)?;
    let left = expires.duration_since(now).unwrap_or_default();
    let lifetime = expires.duration_since(begins).unwrap_or_default();
    (left <= (lifetime / 5).min(MAX_WARNING)).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEM: &str = "the leaf, valid for 30 days from 2026-11-29
-----BEGIN CERTIFICATE-----
MIIBdjCCAR2gAwIBAgIUfQbWdCnTSZpE2gUvc2CRdwpB3/MwCgYIKoZIzj0EAwIw
ETEPMA0GA1UEAwwGY2xpZW50MB4XDTI2MTEyOTAzNDQwMloXDTI2MTIyOTAzNDQw
MlowETEPMA0GA1UEAwwGY2xpZW50MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
D2KP+GL29ZvKm0nTll0k6vxEAQkloYo0XA+Cam6H8v4ok9STKxiQaSyJ0QobTVCW
KRYhxKcJo+t4i4A5FnfilqNTMFEwHQYDVR0OBBYEFCbu10NKCugbYXwdplCM6gT8
Y82XMB8GA1UdIwQYMBaAFCbu10NKCugbYXwdplCM6gT8Y82XMA8GA1UdEwEB/wQF
MAMBAf8wCgYIKoZIzj0EAwIDRwAwRAIgLNvonrHpb+CPxASmb7OHWmoWxOYhptds
fz4thQgO3gcCIHuWc5faNJY+Z18i4ASHo1QfuvwP1XYIj2s7Mor8Ff52
-----END CERTIFICATE-----
-----BEGIN CERTIFICATE-----
AAAA
-----END CERTIFICATE-----
";

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn validity_of_the_first_certificate_is_read() {
        assert_eq!(validity(PEM.as_bytes()), Some((at(1_795_923_842), at(1_798_515_842))));
        let unreadable = [
            "",
            "no certificate",
            "-----BEGIN CERTIFICATE-----\nAAAA",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ];
        assert!(unreadable.iter().all(|pem| validity(pem.as_bytes()).is_none()));
    }

    #[test]
    fn last_fifth_of_a_certificate_is_soon() {
        let day = Duration::from_secs(24 * 60 * 60);
        let with_left = |left| soon_expiry(PEM.as_bytes(), at(1_798_515_842) - left);
        assert_eq!(with_left(6 * day), Some(6 * day));
        assert_eq!(with_left(6 * day + Duration::from_secs(1)), None);
        assert_eq!(soon_expiry(PEM.as_bytes(), at(1_800_000_000)), Some(Duration::ZERO));
        assert_eq!(soon_expiry(b"no certificate", at(1_800_000_000)), None);
    }
}
