use std::path::Path;
use std::{fs, io};

/// The file of the certificate and its key, inside the server's folder.
const CERTIFICATE_FILE: &str = "server.pem";

/// The address at which clients need TLS and a password, and may do only what they are allowed.
#[derive(Clone, Debug)]
pub(super) struct Secured {
    /// The private key and the certificate, as PEM.
    pem: Vec<u8>,
    /// The names and the passwords.
    users: Vec<(String, String)>,
}

impl Secured {
    pub(super) fn new(certificate: Vec<u8>, key: Vec<u8>, users: &[(&str, &str)]) -> Self {
        let is_plain = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric());
        assert!(
            users.iter().all(|(name, password)| is_plain(name) && is_plain(password)),
            "names and passwords may only have letters and digits"
        );
        let owned = |(name, password): &(&str, &str)| ((*name).to_owned(), (*password).to_owned());
        Self { pem: [key, certificate].concat(), users: users.iter().map(owned).collect() }
    }

    pub(super) fn write_certificate(&self, folder: &Path) -> io::Result<()> {
        fs::write(folder.join(CERTIFICATE_FILE), &self.pem)
    }

    /// The arguments of the program that formats the data folder, which then has the users of SCRAM.
    pub(super) fn format_arguments(&self) -> Vec<String> {
        let user = |(name, password): &(String, String)| {
            format!("--add-scram=SCRAM-SHA-512=[name={name},password={password}]")
        };
        self.users.iter().map(user).collect()
    }

    /// The lines of `server.properties`. Clients without a user, which includes the brokers, may do
    /// everything.
    pub(super) fn properties(&self) -> impl Iterator<Item = (String, String)> {
        let plain_users = self.users.iter().map(|(name, password)| {
            // A user of PLAIN is an option of the module.
            format!(" user_{name}=\"{password}\"")
        });
        let module = "org.apache.kafka.common.security";
        let lines = [
            (
                "listener.security.protocol.map",
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL".to_owned(),
            ),
            ("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-512".to_owned()),
            (
                "listener.name.sasl_ssl.plain.sasl.jaas.config",
                format!(
                    "{module}.plain.PlainLoginModule required{};",
                    plain_users.collect::<String>()
                ),
            ),
            (
                "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config",
                format!("{module}.scram.ScramLoginModule required;"),
            ),
            ("ssl.keystore.type", "PEM".to_owned()),
            ("ssl.keystore.location", CERTIFICATE_FILE.to_owned()),
            (
                "authorizer.class.name",
                "org.apache.kafka.metadata.authorizer.StandardAuthorizer".to_owned(),
            ),
            ("super.users", "User:ANONYMOUS".to_owned()),
        ];
        lines.into_iter().map(|(name, value)| (name.to_owned(), value))
    }
}
