//! Encrypted connections, to a server that a certificate was made for.

use retrysafe_store::{
    postgres::StoreAddress,
    sql::{Connection, Driver, FailureKind},
};
use retrysafe_testbed::{
    Certificates,
    postgres::{Throwaway, shared},
};

/// Whether a connection by `address` is encrypted; `Err`: there is none.
async fn encrypted(address: &str) -> Result<bool, FailureKind> {
    let address: StoreAddress = address.parse().unwrap();
    let mut connection = match address.driver() {
        Ok(driver) => driver.acquire().await.map_err(|failure| failure.kind)?,
        Err(failure) => return Err(failure.kind),
    };
    let row = connection.handle().query_one("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &[]);
    Ok(row.await.unwrap().get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_as_safe_as_its_address_says_or_there_is_none() {
    let (certificates, stranger) = (Certificates::make(), Certificates::make());
    let server = Throwaway::start_encrypted(&certificates);
    let (ca, other) = (certificates.authority(), stranger.authority());
    let (ca, other) = (ca.display(), other.display());
    let at = |host: &str, parameters: &str| {
        format!("postgres://postgres@{host}:{}/postgres?{parameters}", server.port())
    };
    let plain = Ok(false);
    let safe = Ok(true);
    let none = Err(FailureKind::Unreachable);
    // The certificate is for localhost and for no other name.
    for (host, parameters, wanted) in [
        ("localhost", String::new(), plain),
        ("localhost", "sslmode=disable".to_owned(), plain),
        ("localhost", "sslmode=prefer".to_owned(), safe),
        ("localhost", "sslmode=require".to_owned(), safe),
        ("127.0.0.1", "sslmode=require".to_owned(), safe),
        ("localhost", format!("sslmode=verify-full&sslrootcert={ca}"), safe),
        ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={ca}"), none),
        ("127.0.0.1", format!("sslmode=verify-ca&sslrootcert={ca}"), safe),
        ("localhost", format!("sslmode=verify-ca&sslrootcert={other}"), none),
        ("localhost", format!("sslmode=verify-full&sslrootcert={other}"), none),
        ("localhost", "sslmode=verify-full&sslrootcert=/nowhere/ca.pem".to_owned(), none),
    ] {
        assert_eq!(encrypted(&at(host, &parameters)).await, wanted, "{host} {parameters}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_no_server_where_it_is_required() {
    let server = Throwaway::start(&[("fsync", "off")]);
    let at = |parameters: &str| format!("{}/postgres?{parameters}", server.address());
    assert_eq!(encrypted(&at("sslmode=require")).await, Err(FailureKind::Unreachable));
    assert_eq!(encrypted(&at("sslmode=prefer")).await, Ok(false));
    assert_eq!(encrypted(&format!("{}/postgres", shared())).await, Ok(false));
}
