package main

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

func TestFlagsWinOverVariablesOverDefaults(t *testing.T) {
	for _, c := range []struct {
		name      string
		variables map[string]string
		flags     []string
		field     string
		want      any
	}{
		{"default", nil, nil, "Listen", []string{"127.0.0.1:6433"}},
		{"variable", map[string]string{"WIREFENCE_LISTEN": "a:1,unix:/b"}, nil, "Listen", []string{"a:1", "unix:/b"}},
		{"flag", nil, []string{"--listen=c:2,d:3"}, "Listen", []string{"c:2", "d:3"}},
		{"flags", nil, []string{"--listen=c:2", "--listen", "d:3"}, "Listen", []string{"c:2", "d:3"}},
		{"flag over variable", map[string]string{"WIREFENCE_LISTEN": "a:1"}, []string{"--listen", "c:2"}, "Listen", []string{"c:2"}},
		{"flag equal to the default over variable", map[string]string{"WIREFENCE_MODE": "off"}, []string{"--mode=enforce"}, "Mode", proxy.Enforce},
		{"required has no default", nil, nil, "Upstream", ""},
		{"mode", map[string]string{"WIREFENCE_MODE": "shadow"}, nil, "Mode", proxy.Shadow},
		{"admin", nil, nil, "AdminListen", "127.0.0.1:9433"},
		{"admin off", nil, []string{"--admin-listen=off"}, "AdminListen", "off"},
		{"number", map[string]string{"WIREFENCE_MAX_CONNECTIONS": "7"}, nil, "MaxConnections", 7},
		{"number's default", nil, nil, "MaxConnections", 1000},
		{"size", nil, []string{"--max-statement=2048"}, "MaxStatement", 2048},
		{"duration", map[string]string{"WIREFENCE_DRAIN_TIMEOUT": "1m"}, nil, "DrainTimeout", time.Minute},
		{"duration's flag", map[string]string{"WIREFENCE_DRAIN_TIMEOUT": "1m"}, []string{"--drain-timeout=2s"}, "DrainTimeout", 2 * time.Second},
		{"duration's default", nil, nil, "DrainGrace", time.Duration(0)},
		{"hold's default", nil, nil, "Hold", 50 * time.Millisecond},
		{"hold", map[string]string{"WIREFENCE_HOLD": "20ms"}, nil, "Hold", 20 * time.Millisecond},
		{"no hold", map[string]string{"WIREFENCE_HOLD": "20ms"}, []string{"--hold=0"}, "Hold", time.Duration(0)},
		{"no variable", nil, nil, "UnfencedWrites", proxy.Allow},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, value := range c.variables {
				t.Setenv(name, value)
			}
			command := proxyCommand()
			if err := command.ParseFlags(c.flags); err != nil {
				t.Fatal(err)
			}
			cfg, err := read[proxySettings](command)
			if err != nil {
				t.Fatal(err)
			}
			if got := reflect.ValueOf(cfg).FieldByName(c.field).Interface(); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s is %#v, not %#v", c.field, got, c.want)
			}
		})
	}
}

// Each setting says what it does, has a flag, and a default that can be read.
func TestEverySettingIsExplained(t *testing.T) {
	var seen []string
	for _, all := range [][]reflect.StructField{
		fields[proxySettings](), fields[lockSettings](), fields[statusSettings](), fields[revokeSettings](), fields[migrateSettings](),
		fields[doctorSettings](), fields[checkSettings](), fields[guardSettings](),
	} {
		for _, f := range all {
			name := f.Tag.Get("env")
			if !strings.HasPrefix(name, prefix) && !strings.HasPrefix(name, flagOnly) || f.Tag.Get("help") == "" {
				t.Errorf("%s has the variable %q and the help %q", f.Name, name, f.Tag.Get("help"))
			}
			seen = append(seen, name)
		}
	}
	for _, name := range []string{"WIREFENCE_LISTEN", "WIREFENCE_UPSTREAM", "WIREFENCE_DATABASE_URL", "WIREFENCE_REDIS_URL", "WIREFENCE_MODE",
		"WIREFENCE_UNFENCED_WRITES", "WIREFENCE_RESOURCE", "WIREFENCE_ADMIN_LISTEN"} {
		if !slices.Contains(seen, name) {
			t.Errorf("no command has %s", name)
		}
	}
}

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	upstream, database := "WIREFENCE_UPSTREAM=postgres://127.0.0.1:1/", "WIREFENCE_DATABASE_URL=postgres://127.0.0.1:1/x?sslmode=disable"
	for _, c := range []struct {
		settings []string
		args     []string
		says     string
	}{
		{nil, []string{"proxy", "--lisen=a:1"}, "unknown flag: --lisen; --listen is one"},
		{nil, []string{"proxy"}, "WIREFENCE_UPSTREAM"},
		{nil, []string{"prox"}, "unknown command \"prox\"; proxy is one"},
		{[]string{upstream}, []string{"proxy", "stray"}, "wants no arguments"},
		{[]string{upstream, "WIREFENCE_MODE=loose"}, []string{"proxy"}, "loose"},
		{[]string{upstream, "WIREFENCE_LOG_LEVEL=loud"}, []string{"proxy"}, "loud"},
		{[]string{upstream}, []string{"proxy", "--hold=11s"}, `--hold is "11s": 0 to 10s`},
		{[]string{upstream, "WIREFENCE_MAX_STATEMENT=0"}, []string{"proxy"}, `WIREFENCE_MAX_STATEMENT is "0": at least 1024`},
		{[]string{upstream, "WIREFENCE_TTL=0s"}, []string{"proxy"}, `WIREFENCE_TTL is "0s": 20ms to 8784h`},
		{[]string{upstream, "WIREFENCE_LEASE=orders"}, []string{"proxy"}, "WIREFENCE_LEASE needs WIREFENCE_DATABASE_URL"},
		{[]string{upstream, database, "WIREFENCE_LEASE=" + strings.Repeat("x", 256)}, []string{"proxy"}, "WIREFENCE_LEASE"},
		{[]string{upstream, database, "WIREFENCE_LEASE=orders", "WIREFENCE_MODE=off"}, []string{"proxy"}, "mode off"},
		{[]string{upstream, database, "WIREFENCE_LEASE=orders", "WIREFENCE_STANDBY=sleep"}, []string{"proxy"}, "sleep"},
		{[]string{upstream, database, "WIREFENCE_LEASE=orders", "WIREFENCE_STANDBY=wait", "WIREFENCE_STANDBY_WAIT=2m"}, []string{"proxy"}, "startup timeout"},
		{[]string{upstream, database, "WIREFENCE_LEASE=orders", "WIREFENCE_TTL=1ms"}, []string{"proxy"}, "TTL"},
		{nil, []string{"history", "--limit=abc"}, `--limit is "abc": a whole number, as in 100`},
		{[]string{"WIREFENCE_REUSE_PORT=yes"}, []string{"proxy"}, `WIREFENCE_REUSE_PORT is "yes": true or false`},
		{[]string{"WIREFENCE_TTL=soon"}, []string{"proxy"}, `WIREFENCE_TTL is "soon": a duration, as in 30s`},
		{nil, []string{"status", "--output=xml"}, `--output is "xml": text or json`},
		{[]string{"WIREFENCE_DRY_RUN=true"}, []string{"migrate"}, "WIREFENCE_DRY_RUN, which is no setting: --dry-run is given on the command line only"},
		{nil, []string{"status", "orders", "--guards"}, "name none"},
		{nil, []string{"status", "orders", "--rows"}, "name none"},
		{nil, []string{"status", "--guards", "--rows"}, "give one"},
		{nil, []string{"status", "orders", "lines"}, "wants one resource or none"},
		{nil, []string{"resource", "set", "orders", "--last-token=x", "--reason=y"}, `--last-token is "x": a whole number`},
		{nil, []string{"status", "--ready", "--guards"}, "give one"},
		{nil, []string{"migrate"}, "WIREFENCE_OWNER_URL is not set (--owner-url)"},
		{nil, []string{"status"}, "WIREFENCE_DATABASE_URL is not set"},
		{nil, []string{"status", "--ready", "--admin-listen=nowhere"}, "WIREFENCE_ADMIN_LISTEN"},
		{nil, []string{"revoke"}, "wants one resource"},
		{nil, []string{"lock", "orders", "true"}, "two dashes"},
		{nil, []string{"lock", "orders", "--", "true"}, "no lease store: set WIREFENCE_DATABASE_URL"},
		{nil, []string{"lock", "orders", "--redis-url=redis://h", "--etcd-url=etcd://u:geheim@h", "--", "true"}, "both WIREFENCE_REDIS_URL and WIREFENCE_ETCD_URL are set"},
		{nil, []string{"lock", "orders", "--etcd-url=etcd://h", "--zookeeper-url=zookeeper://u:geheim@h", "--", "true"}, "both WIREFENCE_ETCD_URL and WIREFENCE_ZOOKEEPER_URL are set"},
		{nil, []string{"lock", "orders", "--zookeeper-url=zookeeper://u:geheim@h?tick=soon", "--", "true"}, "WIREFENCE_ZOOKEEPER_URL"},
		{nil, []string{"lock", "orders", "--database-url=postgres://u:geheim@h:port/", "--", "true"}, "WIREFENCE_DATABASE_URL"},
		{nil, []string{"lock", "orders", "--redis-url=redis://u:geheim@h:port/", "--", "true"}, "WIREFENCE_REDIS_URL"},
		{nil, []string{"lock", "orders", "--redis-url=redis://u:geheim@h", "--redis-wait-replicas=-1", "--", "true"}, `--redis-wait-replicas is "-1": at least 0`},
		{nil, []string{"lock", "orders", "--redis-url=redis://u:geheim@h", "--redis-wait-replicas=1", "--redis-wait-timeout=5s", "--", "true"}, "less than the client's ReadTimeout"},
		{nil, []string{"lock", "orders", "--redis-url=redis://u:geheim@h", "--", "true"}, "WIREFENCE_REDIS_URL is set without WIREFENCE_DATABASE_URL"},
		{[]string{"WIREFENCE_UPSTREAM=postgres://h"}, []string{"proxy", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--etcd-url=etcd://u:geheim@h"}, "WIREFENCE_ETCD_URL is set without WIREFENCE_DATABASE_URL"},
		{[]string{"WIREFENCE_DATABASE_URL=postgres:///"}, []string{"lock", "orders", "--redis-wait-replicas=1", "--", "true"}, "but not WIREFENCE_REDIS_URL"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			r := wirefence(t, c.settings, c.args...).expect(t, exitUsage, c.says, "--help")
			if strings.Contains(r.stderr, "geheim") {
				t.Errorf("the password is shown: %s", r.stderr)
			}
		})
	}
}

// A misspelt setting is refused, and not what others put into the environment.
func TestUnknownVariablesAreRefused(t *testing.T) {
	for _, c := range []struct{ variable, want string }{
		{"WIREFENCE_MOOD=shadow", "the environment has WIREFENCE_MOOD, which is no setting; WIREFENCE_MODE is one"},
		{"WIREFENCE_UNFENCED_WRITE=reject", "no setting; WIREFENCE_UNFENCED_WRITES is one"},
		{"WIREFENCE_NO_SUCH_THING_AT_ALL=x", "which is no setting"},
		{"WIREFENCE_MODE=shadow", ""},
		{"WIREFENCE_WAIT=1s", ""}, // another command's
		{"WIREFENCE_REDIS_URL_FILE=/redis", ""},
		{"WIREFENCE_OUTPUT=json", "no setting: --output is given on the command line only"},
		{"WIREFENCE_MODE_FILE=x", "which is no setting"},
		{"WIREFENCE_FENCE=orders=1", ""},
		{"WIREFENCE_SERVICE_HOST=10.0.0.1", ""},
		{"WIREFENCE_SERVICE_PORT_ADMIN=9433", ""},
		{"WIREFENCE_PORT=tcp://10.0.0.1:6433", ""},
		{"WIREFENCE_ADMIN_PORT_9433_TCP_ADDR=10.0.0.1", ""},
		{"WIREFENCE=x", ""},
	} {
		t.Run(c.variable, func(t *testing.T) {
			r := wirefence(t, []string{c.variable}, "status")
			if got := strings.Contains(r.stderr, "no setting"); got != (c.want != "") || !strings.Contains(r.stderr, c.want) || r.status == 0 {
				t.Errorf("status %d, %s", r.status, r.stderr)
			}
		})
	}
	if r := wirefence(t, []string{"WIREFENCE_MOOD=shadow"}, "version"); r.status != 0 {
		t.Errorf("the version isn't told: %s", r.stderr)
	}
}

func TestRanges(t *testing.T) {
	t.Parallel()
	type all struct {
		Count int           `range:"1.."`
		Some  int           `range:"1..9"`
		Pause time.Duration `range:"0|1s.."`
		Hold  time.Duration `range:"0..10s"`
		Free  time.Duration
	}
	for field, c := range map[string]struct{ in, out, words string }{
		"Count": {"1 2 many", "0 -1", "at least 1"},
		"Some":  {"1 9", "0 10", "1 to 9"},
		"Pause": {"0 0s 1s 1h soon", "-1s 1ms", "0, or at least 1s"},
		"Hold":  {"0 50ms 10s", "-1ms 10001ms", "0 to 10s"},
		"Free":  {"-1s 0 5s", "", ""},
	} {
		f, _ := reflect.TypeFor[all]().FieldByName(field)
		for value := range strings.FieldsSeq(c.in) {
			if !allows(f, value) {
				t.Errorf("%s %s is refused", field, value)
			}
		}
		for value := range strings.FieldsSeq(c.out) {
			if allows(f, value) {
				t.Errorf("%s %s is allowed", field, value)
			}
		}
		if got := allowed(f); got != c.words {
			t.Errorf("%s: %q", field, got)
		}
	}
}

// A command reports wrong input, and what to do, before it changes anything.
func TestWrongInput(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE ROLE wrong_input LOGIN", "CREATE TABLE orders (id int)", "CREATE VIEW seen AS SELECT * FROM orders",
		"CREATE FOREIGN DATA WRAPPER w", "CREATE SERVER s FOREIGN DATA WRAPPER w", "CREATE FOREIGN TABLE far (id int) SERVER s",
		"SELECT wirefence.seal('orders', 34, 'worker-A')")
	bare := database(t, false)
	others := strings.Replace(url, "postgres@", "wrong_input@", 1)
	long := strings.Repeat("z", 256)
	readOnly := url + "&options=-cdefault_transaction_read_only%3Don"
	const wantsPrimary = "target_session_attrs=read-write"
	const needsIssuer = "GRANT wirefence_issuer TO"
	for _, c := range []struct {
		url, args string
		status    int
		says      string
	}{
		{url, "protect orders", 2, "--resource is missing"},
		{url, "protect orders --resource=" + long, 1, "It has 256 bytes"},
		{url, "protect orders --resource={tenant}", 1, "HINT: The table has id."},
		{url, "protect orders --resource={id", 1, "double each brace"},
		{url, "protect orders lines --resource=x", 2, "wants one table"},
		{url, "protect a.b.c.d --resource=x", 1, "a.b.c.d"},
		{url, "protect seen --resource=x", 1, "not on views"},
		{url, "protect far --resource=x", 1, "foreign"},
		{url, "unprotect", 2, "wants one table"},
		{url, "unprotect orders", 1, "is not guarded"},
		{url, "unprotect nowhere", 1, "does not exist and was not guarded"},
		{url, "revoke", 2, "wants one resource"},
		{url, "revoke " + long, 2, "256 bytes"},
		{url, "revoke nothing", 1, "WF008"},
		{url, "lock", 2, "--help"},
		{url, "lock orders psql -c true", 2, "if it is a flag of the command to run, put -- before that"},
		{url, "lock orders psql -h 127.0.0.1", 2, "if -h is a flag of the command to run, put -- before that"},
		{url, "lock orders psql", 2, "two dashes"},
		{url, "lock " + long + " -- true", 2, "256 bytes"},
		{url, "lock orders --ttl=-1s -- true", 2, `--ttl is "-1s": 20ms to 8784h`},
		{url, "lock orders --holder=" + long + " -- true", 2, "at most 160 are allowed"},
		{url, "lock orders --wait=-1s -- true", 2, `--wait is "-1s": at least 0`},
		{url, "lock orders --term-grace=0s -- true", 2, `--term-grace is "0s": at least 1ms`},
		{url, "resource set orders --preempt-after=600h --reason=x", 1, "never, or 0 to 24 days"},
		{url, "status --wait=1s", 2, "give it with --ready"},
		{url, "status --ready --wait=300ms --admin-listen=127.0.0.1:1", 1, "the proxy's probes don't answer"},
		{url, "status --nothing", 2, "unknown flag"},
		{others, "protect orders --resource=x", 1, "HINT: Connect as postgres"},
		{others, "revoke orders", 1, needsIssuer},
		{others, "status", 1, needsIssuer},
		{others, "status --guards", 1, needsIssuer},
		{others, "resource list", 1, needsIssuer},
		{others, "resource set orders --reuse=once --reason=x", 1, needsIssuer},
		{others, "resource declare new --reason=x", 1, needsIssuer},
		{others, "lock orders -- true", exitConfig, needsIssuer},
		{readOnly, "revoke orders", 1, wantsPrimary},
		{readOnly, "resource set orders --reuse=once --reason=x", 1, wantsPrimary},
		{readOnly, "protect orders --resource=x", 1, wantsPrimary},
		{readOnly, "lock orders -- true", exitUnavailable, wantsPrimary},
		{strings.Replace(readOnly, url, bare, 1), "migrate", 1, wantsPrimary},
		{bare, "protect orders --resource=x", exitConfig, noSchema},
		{bare, "unprotect orders", exitConfig, noSchema},
		{bare, "revoke orders", exitConfig, noSchema},
		{bare, "status --guards", exitConfig, noSchema},
		{bare, "lock orders -- true", exitConfig, "run `wirefence migrate`"},
		{"", "protect orders --resource=x", 2, "WIREFENCE_OWNER_URL is not set (--owner-url), nor WIREFENCE_DATABASE_URL: it is the connection string of the table's owner"},
		{"", "unprotect orders", 2, "the table's owner"},
		{url, "history " + long, 2, "history: a resource name has 256 bytes"},
		{"not a url", "status", 2, "WIREFENCE_DATABASE_URL"},
		{url, "lock orders --ttl=9000h --wait=1h -- true", 2, `--ttl is "9000h"`},
		{url + "&sslcrl=/x", "lock orders --wait=1h -- true", 2, "sslcrl is not supported"},
		{url + "&search_path=x", "lock orders --wait=1h -- true", 2, "libpq doesn't know"},
		{url + "&options=-cnonsense%3D1", "lock orders --wait=1h -- true", exitConfig, "nonsense"},
		{"jdbc:" + url, "lock orders --wait=1h -- true", 2, "begins with postgres://"},
	} {
		wirefence(t, issuer(c.url), strings.Fields(c.args)...).expect(t, c.status, c.says)
	}
	if r := show(t, url, "orders"); r.Token != 34 || r.Reuse != "allow" || len(r.Changes) > 0 {
		t.Errorf("changed to %+v", r)
	}
	wirefence(t, issuer(url), "status", "--guards").expect(t, 0).says(t, "No table is guarded.")
}
