// Package howto follows the task pages of the documentation, docs/howto-*.md: its tests
// write the files that a page shows, type its commands beside a real PostgreSQL, proxy and
// PgBouncer, and compare what they print with the page.
package howto
