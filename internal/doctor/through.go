package doctor

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient/finding"
)

// throughChecks try which carriers of a fence, and which locks, survive on the way to the database, through a pooler
// for instance: with several clients in turn, a query each, so that they may share its server
// connections. They carry values that are no fence.
func (in *Input) throughChecks() []Check {
	if in.Through == nil {
		return nil
	}
	const reachable = "through.reachable"
	return []Check{{reachable, []string{databaseReachable}, checkThrough}, {"through.carriers", []string{reachable, schemaVersion}, checkCarriers}}
}

// checkCarriers tries one after the other: they share the pooler's server connections.
func checkCarriers(ctx context.Context, in *Input) (all []Finding, err error) {
	lasts := map[string]bool{}
	for _, way := range []struct {
		name string
		try  func(context.Context, *Input) ([]Finding, error)
	}{
		{"comment", tryComment}, {"SET LOCAL", tryLocal}, {"options", tryOptions}, {"SET", trySession}, {"name", tryName},
		{"session lock", trySessionLock}, {"transaction lock", tryTransactionLock}, {"LISTEN", tryListen},
	} {
		found, err := way.try(ctx, in)
		all = append(all, found...)
		if err != nil {
			return all, err
		}
		lasts[way.name] = slices.ContainsFunc(found, func(f Finding) bool { return f.Grade == OK })
	}
	return append(all, advise(lasts)...), nil
}

//go:embed sql/setting.sql
var settingSQL string

//go:embed sql/set_setting.sql
var setSettingSQL string

//go:embed sql/comment.sql
var commentSQL string

// probe is the setting that stands for the fence's.
const probe = "wirefence_doctor.probe"

// turns is how often each client has its turn.
const turns = 4

// clients are sessions through the URL, closed by close.
type clients []*pgx.Conn

func (all clients) close(ctx context.Context) {
	for _, conn := range all {
		_ = conn.Close(context.WithoutCancel(ctx))
	}
}

// open adds a client with a parameter in its startup packet; "" sends none.
func (all *clients) open(ctx context.Context, in *Input, parameter, value string) (*pgx.Conn, error) {
	cfg := in.Through.Copy()
	delete(cfg.RuntimeParams, "application_name")
	if parameter != "" {
		cfg.RuntimeParams[parameter] = value
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err == nil {
		*all = append(*all, conn)
	}
	return conn, err
}

// sees reads a setting.
func sees(ctx context.Context, conn *pgx.Conn, setting string) (value string, err error) {
	err = conn.QueryRow(ctx, settingSQL, setting).Scan(&value)
	return value, err
}

// differs says what carrier doesn't survive, what that means, and what to use instead.
func differs(says, means, remedy string) []Finding {
	return []Finding{{Grade: Note, Says: says, Means: means, Remedy: []string{remedy}}}
}

const useOther = "carry fences in comments or by SET LOCAL, or in application_name if that survives"

func checkThrough(ctx context.Context, in *Input) ([]Finding, error) {
	same, err := in.sameDatabase(ctx, in.Through)
	if err != nil {
		return []Finding{{Grade: Problem, Says: "no session through --through: " + unanswered(ctx, err), Means: "Nothing can be tried there.",
			Remedy: []string{"give a connection string with which applications connect"}}}, nil
	}
	return databaseFinding("--through", same), nil
}

func tryComment(ctx context.Context, in *Input) ([]Finding, error) {
	var all clients
	defer func() { all.close(ctx) }()
	conn, err := all.open(ctx, in, "", "")
	if err != nil {
		return nil, err
	}
	var survives bool
	if err := conn.QueryRow(ctx, commentSQL).Scan(&survives); err != nil {
		return nil, err
	}
	if !survives {
		return differs("comments are removed from statements", "A proxy behind it sees no fence in a comment.", "carry fences by SET LOCAL"), nil
	}
	return finding.Fine("comments survive: a proxy behind it reads their fences; guards don't"), nil
}

func tryLocal(ctx context.Context, in *Input) ([]Finding, error) {
	var all clients
	defer func() { all.close(ctx) }()
	conn, err := all.open(ctx, in, "", "")
	if err != nil {
		return nil, err
	}
	var value string
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, setSettingSQL, "local", true); err != nil {
			return err
		}
		value, err = sees(ctx, conn, probe)
		return err
	})
	if err != nil || value != "local" {
		return differs("SET LOCAL doesn't last in a transaction", "No guard sees such a fence.", "use session or transaction pooling, not statement pooling"), nil
	}
	return finding.Fine("SET LOCAL lasts for its transaction: guards and a proxy behind it see its fence"), nil
}

func tryOptions(ctx context.Context, in *Input) ([]Finding, error) {
	var all clients
	defer func() { all.close(ctx) }()
	conn, err := all.open(ctx, in, "options", "-c "+probe+"=options")
	if err != nil {
		return differs("the startup parameter options is refused: "+unanswered(ctx, err), "PGOPTIONS carries no fence; wirefence lock needs --carry name or listener.", useOther), nil
	}
	plain, err := all.open(ctx, in, "", "")
	if err != nil {
		return nil, err
	}
	leaks, lost, err := inTurn(conn, plain, hasProbe(ctx, "options"))
	if err != nil {
		return nil, err
	}
	return judgeTurns(leaks, lost, "the startup parameter options"), nil
}

func trySession(ctx context.Context, in *Input) ([]Finding, error) {
	set := func(value string) func(*pgx.Conn) error {
		return func(conn *pgx.Conn) error { _, err := conn.Exec(ctx, setSettingSQL, value, false); return err }
	}
	leaks, lost, err := in.twoClients(ctx, set("session"), hasProbe(ctx, "session"), set(""))
	if err != nil {
		return nil, err
	}
	return judgeTurns(leaks, lost, "SET"), nil
}

// hasProbe returns what tells whether a client's probe has a value.
func hasProbe(ctx context.Context, value string) func(*pgx.Conn) (bool, error) {
	return func(conn *pgx.Conn) (bool, error) {
		got, err := sees(ctx, conn, probe)
		return got == value, err
	}
}

// judgeTurns judges what two clients saw in turn, of which the first has set its probe.
func judgeTurns(leaks, lost bool, carrier string) []Finding {
	switch {
	case leaks:
		return []Finding{{Grade: Warning, Says: "what one client sets by " + carrier + " another gets", Means: "A client may write under another's fence.",
			Remedy: []string{useOther, "let PgBouncer reset it: server_reset_query = RESET wirefence.token, server_reset_query_always = 1"}}}
	case lost:
		return differs(carrier+" sets nothing that lasts", "Such a fence is lost without a word.", useOther)
	}
	return finding.Fine("%s lasts for its client's session", carrier)
}

// The names of clients. What stands behind one has the next turn.
const (
	someName = "wirefence doctor a"
	sameName = "WIREFENCE doctor a" // but for its case
	nextName = "wirefence doctor b"
	longName = "wirefence doctor c, with a name of 63 bytes, which is the most~"
)

// tryName tries clients with names, and without one.
func tryName(ctx context.Context, in *Input) ([]Finding, error) {
	counts, err := fence.CarriesName(ctx, in.Database)
	if err != nil {
		return nil, err
	}
	names := []string{someName, sameName, nextName, longName, ""}
	var all clients
	defer func() { all.close(ctx) }()
	for _, name := range names {
		parameter := "application_name"
		if name == "" {
			parameter = ""
		}
		if _, err := all.open(ctx, in, parameter, name); err != nil {
			return nil, err
		}
	}
	wrong := map[string]string{} // a name that was seen, by the client's own
	for range turns {
		for i, name := range names {
			got, err := sees(ctx, all[i], "application_name")
			if err != nil {
				return nil, err
			}
			// A pooler may append something, as PgBouncer does an address.
			if name == "" && slices.Contains(names[:4], got) || !strings.HasPrefix(got, name) {
				wrong[name] = got
			}
		}
	}
	return judgeNames(wrong, counts), nil
}

// judgeNames judges which clients had another name than their own; counts says that a fence there
// counts.
func judgeNames(wrong map[string]string, counts bool) (found []Finding) {
	grade, off := Note, "leave it off, as it is"
	if counts {
		grade, off = Problem, "wirefence carry-name off --reason 'the pooler loses names'"
	}
	if got, lost := wrong[someName]; lost {
		return []Finding{{Grade: grade, Says: fmt.Sprintf("application_name is lost: a client has the name %q there", got), Means: "No fence arrives in a name.", Remedy: []string{off}}}
	}
	for _, c := range []struct{ name, says, means, remedy string }{
		{"", "a client without application_name gets another's", "It would write under another client's fence.", "give every client a name, or upgrade the pooler (PgBouncer from 1.22 on doesn't)"},
		{nextName, "clients get each other's application_name", "A client would write under another's fence.", off},
		{sameName, "application_names that differ in case are taken for equal", "Fences are safe, which have no capitals there. A name that isn't a fence may differ from one by case alone.", "write fences by wirefence lock or Fence.Name"},
		{longName, "an application_name of 63 bytes is lost or cut", "A cut fence is refused (WF004).", "use short names of resources"},
	} {
		if got, is := wrong[c.name]; is {
			g := grade
			if c.name == sameName {
				g = Note
			}
			found = append(found, Finding{Grade: g, Says: fmt.Sprintf("%s: %q", c.says, got), Means: c.means, Remedy: []string{c.remedy}})
		}
	}
	if _, alike := wrong[sameName]; len(found) > 1 || len(found) == 1 && !alike {
		return found
	}
	if counts {
		return append(found, finding.Fine("each client keeps its application_name, and a fence there counts")...)
	}
	return append(found, differs("each client keeps its application_name, and a fence there doesn't count", "A session whose name carries a fence is as one without.", "wirefence carry-name on --reason WHY, if clients need it; then wirefence lock --carry name")...)
}
