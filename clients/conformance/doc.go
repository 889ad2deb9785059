// Package conformance holds the cases that every client passes, and the tests that run
// them: the clients for Python and TypeScript, over the API and by SQL, for Rust, Ruby and Java, and lockclient,
// before a real proxy with PostgreSQL and Redis. Its tests also stop workers, and write by each driver that a client
// has a hook for.
package conformance
