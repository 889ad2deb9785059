// Package howto follows the pages of the documentation that show commands: its tests write
// the files that a page shows, type its commands beside a real PostgreSQL, proxy and PgBouncer,
// and compare what they print with the page.
package howto
