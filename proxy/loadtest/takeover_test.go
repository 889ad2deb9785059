package loadtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/model"
)

// taker takes resources over from whoever has them.
type taker struct {
	*crowd
	r    *rand.Rand
	conn *pgx.Conn
}

func newTaker(c *crowd, number int) *taker {
	return &taker{crowd: c, r: rand.New(rand.NewPCG(c.seed, 1<<32+uint64(number)))}
}

func (k *taker) close() {
	if k.conn != nil {
		_ = k.conn.Close(context.Background())
	}
}

// takeOver seals one token or several in one transaction, seldom after a revocation.
func (k *taker) takeOver(ctx context.Context) {
	set := drawSet(k.r, k.resources)
	set = set[:min(len(set), max(1, k.r.IntN(8)-3))] // mostly one, at most four
	kind := k.r.IntN(8)
	limited, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	began := time.Now()
	err := k.connected(limited)
	if err == nil && kind == 0 {
		set = set[:1]
		err = k.revoke(limited, set[0])
	}
	if err == nil {
		err = k.seal(limited, set)
	}
	var pgErr *pgconn.PgError
	switch isPg := errors.As(err, &pgErr); {
	case err == nil:
		k.tookOver(time.Since(began))
	case ctx.Err() != nil:
	case errors.Is(err, context.DeadlineExceeded):
		k.hung()
		k.fault("a takeover of %d resources takes too long", len(set))
	case isPg && pgErr.Code == "40001" && len(set) > 1, // as documented
		!isPg || pgErr.Code == "57P01": // by a newer takeover
	default:
		k.fault("a takeover of %d resources failed: %s", len(set), describe(err))
	}
}

func (k *taker) connected(ctx context.Context) (err error) {
	if k.conn == nil || k.conn.IsClosed() {
		k.conn, err = pgx.Connect(ctx, k.url("issuer", false))
	}
	return err
}

// revoke bumps a resource. The token that all writers still believe in is stale
// until the next is sealed.
func (k *taker) revoke(ctx context.Context, r *resource) error {
	r.revoking.Add(1)
	defer r.revoked.Add(1)
	bumped, err := fence.Revoke(ctx, k.conn, r.name())
	if fence.IsUndeclared(err) && !r.sealable {
		return nil // nobody has used it yet
	}
	if err == nil {
		raise(&r.next, int64(bumped))
		if !r.sealable {
			raise(&r.believed, int64(bumped))
		}
	}
	return err
}

// seal records the next tokens, in one transaction and in no order, looks what the former
// holders have left, and tells the steps of the grants.
func (k *taker) seal(ctx context.Context, set []*resource) error {
	granted := tokens{}
	err := pgx.BeginFunc(ctx, k.conn, func(tx pgx.Tx) error {
		for _, r := range set {
			if !r.sealable {
				continue
			}
			token := r.next.Add(1)
			sealed, err := fence.Seal(ctx, tx, fence.Grant{Resource: r.name(), Token: fence.Token(token)})
			if err != nil {
				return err
			}
			if sealed {
				granted[r] = token
			} else {
				note(k.journal, k.journal.higher, recorded{r.id, token}, true)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for r, token := range granted {
		raise(&r.believed, token)
	}
	for r, token := range granted {
		var rows int64
		step := model.Step{Kind: model.Granted, Actor: fmt.Sprint(k.conn.PgConn().PID()), Resource: string(r.name()), Token: token}
		err := k.conn.QueryRow(ctx, "SELECT count(*), pg_logical_emit_message(false, 'step', $3)::text FROM journal WHERE id = $1 AND token < $2", r.id, token, step.String()).Scan(&rows, nil)
		if err != nil {
			return fmt.Errorf("look at the journal: %w", err)
		}
		note(k.journal, k.journal.seen, recorded{r.id, token}, rows)
	}
	return nil
}
