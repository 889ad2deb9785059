package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/connstring"
)

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
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, "SELECT pg_catalog.current_setting('transaction_read_only') = 'on'", pgx.QueryExecModeSimpleProtocol).Scan(&readOnly)
	return readOnly && err == nil
}
