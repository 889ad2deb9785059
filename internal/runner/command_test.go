package runner

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/wirefence/wirefence/internal/servers"
)

func TestPGOptions(t *testing.T) {
	for _, c := range []struct{ given, want string }{
		{"", "-c wirefence.token=orders=34"},
		{"-c a=b", "-c a=b -c wirefence.token=orders=34"},
		{`-c a=b\ c`, `-c a=b\ c -c wirefence.token=orders=34`},
		{`-c a=b\`, `-c a=b -c wirefence.token=orders=34`},
		{`-c a=b\\`, `-c a=b\\ -c wirefence.token=orders=34`},
		{`-c a=b\\\`, `-c a=b\\ -c wirefence.token=orders=34`},
		{`\`, "-c wirefence.token=orders=34"},
	} {
		if got := pgOptions(c.given, "orders=34"); got != c.want {
			t.Errorf("%s: got %s, want %s", c.given, got, c.want)
		}
	}
}

// split reads PGOPTIONS as PostgreSQL's pg_split_opts does.
func split(options string) (args []string) {
	for i := 0; i < len(options); {
		if options[i] == ' ' {
			i++
			continue
		}
		var arg []byte
		for ; i < len(options) && options[i] != ' '; i++ {
			if options[i] == '\\' {
				if i++; i == len(options) {
					break
				}
			}
			arg = append(arg, options[i])
		}
		args = append(args, string(arg))
	}
	return args
}

func TestPGOptionsAlwaysEndInTheFence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		given := rapid.StringMatching(`([-ab=\\ ]){0,12}`).Draw(t, "given")
		before, after := split(given), split(pgOptions(given, "orders=34"))
		n := len(after)
		if n < 2 || after[n-2] != "-c" || after[n-1] != "wirefence.token=orders=34" {
			t.Fatalf("%q", after)
		}
		for i := range after[:n-2] {
			if after[i] != before[i] {
				t.Fatalf("%q became %q", before, after)
			}
		}
	})
}

func TestPostgresReadsPGOptions(t *testing.T) {
	ctx := t.Context()
	server, err := servers.StartPostgres(ctx, servers.PostgresConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, given := range []string{"", "-c wirefence.token=orders=1", `-c application_name=a\ b`, `-c application_name=a\`, `-c application_name=a\\`} {
		config, err := pgx.ParseConfig(server.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		config.RuntimeParams["options"] = pgOptions(given, "it%27s=34")
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			t.Fatal(err)
		}
		var carried string
		if err := conn.QueryRow(ctx, "SELECT current_setting('wirefence.token')").Scan(&carried); err != nil || carried != "it%27s=34" {
			t.Errorf("%s: %q, %v", given, carried, err)
		}
		conn.Close(ctx)
	}
}
