package demo

import "fmt"

// printAddresses prints how to reach the servers, and commands to try.
func (s *stage) printAddresses(t *timeline, o Options) {
	t.heading("All of it keeps running until Ctrl-C")
	for _, place := range [][2]string{
		{"proxy", s.proxied("app")},
		{"PostgreSQL", s.direct("app")},
		{"issuer", s.direct("issuer")},
		{"Redis", s.redisURL(0)},
		{"console", s.console()},
		{"metrics", "http://" + s.proxy.Admin + "/metrics"},
		{"proxy's log", s.proxy.LogFile()},
	} {
		fmt.Fprintf(t.w, "  %-12s %s\n", place[0], place[1])
	}
	psql := fmt.Sprintf("psql '%s'", s.proxied("app"))
	const update = `"UPDATE orders SET status = 'returned', written_by = 'you' WHERE id = 1"`
	for _, try := range [][2]string{
		{"A stale write, as the zombie's", "PGOPTIONS='-c wirefence.token=orders=33' " + psql + " -c " + update},
		{"The same with the current token", "PGOPTIONS='-c wirefence.token=orders=34' " + psql + " -c " + update},
		{"What the database knows", fmt.Sprintf("WIREFENCE_DATABASE_URL='%s' %s status", s.direct("issuer"), o.Command)},
		{"A shell's command under a lease of its own", fmt.Sprintf(
			"WIREFENCE_REDIS_URL='%s' WIREFENCE_DATABASE_URL='%s' \\\n    %s lock orders -- %s -c %s",
			s.redisURL(0), s.direct("issuer"), o.Command, psql, update)},
	} {
		fmt.Fprintf(t.w, "\n%s:\n\n  %s\n", try[0], try[1])
	}
	fmt.Fprintln(t.w)
}
