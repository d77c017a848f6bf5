//! The fingerprint by which unique jobs are compared.

use crate::types::config::ConfigError;
use crate::types::unique::{Fields, Fingerprint};
use serde_json::Value;
use sha2::{Digest, Sha256};

impl Fingerprint {
    /// Returns the fingerprint of a job. The order of the fields of an object does not matter, also
    /// in nested objects. (MediaWiki forgot that in one of two places.)
    ///
    /// # Errors
    /// [`ConfigError::FingerprintField`] for a chosen field that the payload does not have.
    pub(crate) fn of(kind: &str, payload: &[u8], fields: &Fields) -> Result<Self, ConfigError> {
        // A payload that is not JSON has an encoding of its own, and is compared byte by byte.
        let value = serde_json::from_slice(payload).unwrap_or_else(|_| payload.into());
        let value = fields.chosen(value)?;
        let mut hasher = Sha256::new();
        hasher.update((kind.len() as u64).to_be_bytes());
        hasher.update(kind.as_bytes());
        let mut text = Vec::with_capacity(payload.len());
        write_sorted(&value, &mut text);
        hasher.update(&text);
        let hash: [u8; 32] = hasher.finalize().into();
        let mut half = [0; 16];
        half.copy_from_slice(&hash[..16]);
        Ok(Self(half))
    }
}

impl Fields {
    fn chosen(&self, mut value: Value) -> Result<Value, ConfigError> {
        let (Self::Only(fields) | Self::Ignoring(fields)) = self else { return Ok(value) };
        for field in fields {
            if value.get(field).is_none() {
                return Err(ConfigError::FingerprintField { field: field.clone() });
            }
        }
        if let Value::Object(object) = &mut value {
            let is_only = matches!(self, Self::Only(_));
            object.retain(|field, _| fields.contains(field) == is_only);
        }
        Ok(value)
    }
}

/// Appends a value as JSON whose objects have sorted fields. `serde_json` sorts them only if no
/// crate of the program enables preserving their order.
fn write_sorted(value: &Value, text: &mut Vec<u8>) {
    match value {
        Value::Object(object) => {
            let mut fields: Vec<_> = object.iter().collect();
            fields.sort_unstable_by_key(|(field, _)| field.as_str());
            text.push(b'{');
            for (field, value) in fields {
                text.extend_from_slice(Value::from(field.as_str()).to_string().as_bytes());
                text.push(b':');
                write_sorted(value, text);
                text.push(b',');
            }
            text.push(b'}');
        }
        Value::Array(values) => {
            text.push(b'[');
            for value in values {
                write_sorted(value, text);
                text.push(b',');
            }
            text.push(b']');
        }
        plain => text.extend_from_slice(plain.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(payload: &str, fields: &Fields) -> Fingerprint {
        Fingerprint::of("k", payload.as_bytes(), fields).expect("it has the fields")
    }

    #[test]
    fn field_order_does_not_change_a_fingerprint() {
        let one = of(r#"{"a":1,"b":{"x":[1,{"p":1,"q":2}],"y":2}}"#, &Fields::All);
        let other = of(r#" {"b":{"y":2,"x":[1,{"q":2,"p":1}]} ,"a":1}"#, &Fields::All);
        assert_eq!(one, other);
        for different in [r#"{"a":1}"#, r#"{"a":1,"b":{"x":[{"p":1,"q":2},1],"y":2}}"#, r#"{"a":"1","b":2}"#] {
            assert_ne!(one, of(different, &Fields::All), "{different}");
        }
        let kinds = ["k", "kk"].map(|kind| Fingerprint::of(kind, b"1", &Fields::All));
        assert_ne!(kinds[0], kinds[1]);
        // The value is stored, so it must never change.
        assert_eq!(one.text(), "d7ca2796a18b2026fc9a4c1727c4e86e");
    }

    #[test]
    fn only_chosen_fields_count_and_must_exist() {
        let only = Fields::Only(vec!["user".into()]);
        let ignoring = Fields::Ignoring(vec!["at".into()]);
        assert_eq!(of(r#"{"user":1,"at":5}"#, &only), of(r#"{"user":1,"at":6,"z":1}"#, &only));
        assert_ne!(of(r#"{"user":1,"at":5}"#, &only), of(r#"{"user":2,"at":5}"#, &only));
        assert_eq!(of(r#"{"user":1,"at":5}"#, &ignoring), of(r#"{"user":1,"at":6}"#, &ignoring));
        assert_ne!(of(r#"{"user":1,"at":5}"#, &ignoring), of(r#"{"user":2,"at":5}"#, &ignoring));
        for (payload, fields) in [(r#"{"user":1}"#, &ignoring), ("{}", &only), ("[1]", &only), ("7", &ignoring)] {
            let refused = Fingerprint::of("k", payload.as_bytes(), fields).expect_err("the field is missing");
            assert!(matches!(&refused, ConfigError::FingerprintField { field } if field == "user" || field == "at"));
        }
    }
}
