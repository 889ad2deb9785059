package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/runner"
)

type lockSettings struct {
	LeaseSettings
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" group:"Connections" file:"anew" help:"connection string of the issuer's role, to seal the grant, and for the lease if no other store is named"`
	PasswordSettings
	Carry     string        `env:"WIREFENCE_CARRY" group:"Fencing" oneof:"listener|options|name" envDefault:"listener" help:"how the command's sessions carry the fence: ~listener~: by ~PGHOST~ they pass a [listener](holding.md#how-the-fence-is-carried) of ~wirefence lock~, which stamps each with it; ~options~: in ~PGOPTIONS~ alone; ~name~: in ~PGAPPNAME~ alone, behind a [pooler](poolers.md#a-fence-in-application_name) that refuses ~PGOPTIONS~"`
	Wait      time.Duration `env:"WIREFENCE_WAIT" group:"Leases" envDefault:"0s" range:"0.." help:"time to wait for the lease, and for a store or a database that is down; ~0s~ tries once"`
	TermGrace time.Duration `env:"WIREFENCE_TERM_GRACE" group:"Leases" envDefault:"10s" range:"1ms.." help:"time from SIGTERM to SIGKILL when the command is [ended](holding.md#wirefence-lock); less if the lease ends earlier"`
	LogLevel  string        `env:"WIREFENCE_LOG_LEVEL" group:"Observability" type:"debug|info|warn|error" envDefault:"warn" help:"~debug~, ~info~, ~warn~ or ~error~"`
	LogFormat string        `env:"WIREFENCE_LOG_FORMAT" group:"Observability" type:"text|json|auto" envDefault:"auto" help:"~text~, ~json~, or ~auto~: text on a terminal, otherwise JSON"`
}

func lockCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "lock [flags] RESOURCE -- COMMAND [ARG...]",
		Short: "Run a command under a lease",
		Long: `Takes the lease of a resource and runs a command whose sessions carry its fence: by
PGHOST they pass a listener of this process, which stamps them and connects them to
the server that PGHOST named before. The fence is also in PGOPTIONS, for libpq, and
in WIREFENCE_FENCE (orders=34), and its token in WIREFENCE_TOKEN (34). If no session
was seen with the fence, a warning at the end says so.

The command's process group, and on Linux what has left it, is ended before anyone
else can get the lease, and when the command itself has ended. Under another
wirefence lock it carries the fences of both.

The lease is free again when the command has ended. With --keep-for 10m it stays taken
until 10 minutes after its grant if the command has succeeded, so that two hosts with
one schedule run a short job once. After a failure it is free at once.

Leases are in the database of WIREFENCE_DATABASE_URL, or in the store that a setting
such as WIREFENCE_REDIS_URL names. All competitors must use the same store.

The exit status is the command's, or 128 and the number of the signal that ended it,
if the command has ended by itself. Otherwise:

    2    wrong usage
    69   the lease store or the database is down; the command was not started
    75   another holds the lease; the command was not started
    76   the lease was lost, and the command was ended
    78   the resource is another lock service's, or the schema is missing or too
         far from this version; the command was not started
    126  the command can't be run, or its listener can't be opened
    127  the command isn't there`,
		Example: "  wirefence lock orders -- ./job.sh\n  wirefence lock -- -orders -- ./job.sh\n  wirefence lock nightly --keep-for 10m -- ./short.sh",
		Args: func(c *cobra.Command, args []string) error {
			if _, command := splitLocked(c, args); len(command) == 0 {
				return usageError{errors.New("wants a resource, two dashes and a command: wirefence lock orders -- ./job.sh")}
			}
			return nil
		},
	}, func(c *cobra.Command, cfg lockSettings, args []string) error {
		name, command := splitLocked(c, args)
		resource, err := parseResource(name)
		if err != nil {
			return err
		}
		return runLocked(c.Context(), cfg, resource, command)
	})
}

// splitLocked splits the arguments of lock. A resource whose name begins with a dash has two
// dashes before it, too.
func splitLocked(c *cobra.Command, args []string) (resource string, command []string) {
	switch at := c.ArgsLenAtDash(); {
	case at == 1:
		return args[0], args[1:]
	case at == 0 && len(args) > 2 && args[1] == "--":
		return args[0], args[2:]
	}
	return "", nil
}

func runLocked(ctx context.Context, cfg lockSettings, resource fence.Resource, command []string) error {
	options := inForeground(cfg.TermGrace)
	options.OnlyChild = cfg.PasswordCommand == "" // which is another child
	options.Wanted, options.Env, options.ByName = ctx, os.Environ(), cfg.Carry == "name"
	carrier, err := newCarrier(cfg, options.Env)
	if err != nil {
		return err
	}
	if options.ByName {
		if err := fitsName(resource); err != nil {
			return usageError{err}
		}
	}
	a, closeAll, err := newAcquirer(ctx, cfg, resource)
	if err != nil {
		return err
	}
	defer closeAll()
	lease, err := a.acquire(ctx, cfg.Wait)
	if err != nil {
		return err
	}
	carried, err := carrier.start(lease, &options)
	if err != nil {
		return exitAs(runner.ExitNotExecutable, err)
	}
	status, err := runner.Run(context.WithoutCancel(ctx), carried, command, options)
	a.collectRefusals()
	if err == nil {
		carrier.warnOfNone(a.log)
	}
	if errors.Is(err, runner.ErrNotWanted) {
		status = interrupted(ctx)
	}
	return exitAs(status, err)
}

// newAcquirer prepares to acquire what the settings name. The caller calls closeAll.
func newAcquirer(ctx context.Context, cfg lockSettings, resource fence.Resource) (a *acquirer, closeAll func(), err error) {
	log, err := newLogger(cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return nil, nil, err
	}
	leases, err := openLeases(ctx, cfg.StoreSettings, cfg.DatabaseURL, cfg.SealURLs)
	if err != nil {
		return nil, nil, usageError{err}
	}
	if err := cfg.sealing(cfg.DatabaseURL, log); err != nil {
		leases.close()
		return nil, nil, err
	}
	client, err := leases.client(cfg.LeaseSettings, log)
	if err != nil {
		leases.close()
		return nil, nil, usageError{err}
	}
	return &acquirer{client: client, databases: leases.databases, resource: resource, byName: cfg.Carry == "name", log: log}, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = client.Close(ctx)
		leases.close()
	}, nil
}

// What `wirefence lock` and `wirefence guard` share: both run another command.

// inForeground are the options of a command that has this process's standard files.
func inForeground(grace time.Duration) runner.Options {
	return runner.Options{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, TermGrace: grace, OnlyChild: true}
}

// exitAs ends this process with a status; err, if any, says why.
func exitAs(status int, err error) error {
	if status == 0 && err == nil {
		return nil
	}
	return &exitStatus{status, err}
}

// longestToken is one of the longest that Wirefence grants.
const longestToken = 1<<53 - 1

// fitsName reports whether the fence of a resource fits into application_name, whatever its token.
func fitsName(resource fence.Resource) error {
	f, err := fence.New(fence.Pair{Resource: resource, Token: longestToken})
	if err != nil {
		return err
	}
	if _, err = f.Name(""); err != nil {
		err = fmt.Errorf("%w: give the resource a shorter name, or use another --carry", err)
	}
	return err
}

// errNamesUnnoticed says that a fence in application_name would not be noticed, or its loss.
var errNamesUnnoticed = errors.New("--carry name")

// checkNames checks that the database reads fences in application_name, and that a write is refused
// whose name was lost on the way: by a guard for the resource, or a proxy that rejects writes
// without a fence.
func checkNames(ctx context.Context, q fence.Querier, resource fence.Resource) error {
	switch counts, err := fence.CarriesName(ctx, q); {
	case err != nil:
		return err
	case !counts:
		return fmt.Errorf("%w: fences in application_name don't count in this database; see wirefence doctor --through URL, then run wirefence carry-name on", errNamesUnnoticed)
	}
	guards, err := fence.Guards(ctx, q)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(guards, func(g fence.Guard) bool { return mayAsk(g, resource) }) || rejectsWrites(ctx) {
		return nil
	}
	return fmt.Errorf("%w: nothing would refuse a write whose name was lost on the way: no guard asks for %q, and where libpq's variables lead no proxy has WIREFENCE_UNFENCED_WRITES=reject; see wirefence protect", errNamesUnnoticed, resource)
}

// mayAsk reports whether a guard refuses writes without a token of this resource, or may.
func mayAsk(g fence.Guard, resource fence.Resource) bool {
	literal, _, template := strings.Cut(g.Resource, "{")
	return g.Mode != fence.ModeShadow && (g.Resource == string(resource) || template && strings.HasPrefix(string(resource), literal))
}

// rejectsWrites reports whether a session without a fence, to which libpq's variables lead, may only
// read.
func rejectsWrites(ctx context.Context) (readOnly bool) {
	cfg, err := connstring.Conn("")
	if err != nil {
		return false
	}
	cfg.RuntimeParams["application_name"] = "wirefence lock"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return false
	}
	defer closeConn(conn)
	err = conn.QueryRow(ctx, "SELECT pg_catalog.current_setting('transaction_read_only') = 'on'", pgx.QueryExecModeSimpleProtocol).Scan(&readOnly)
	return readOnly && err == nil
}
