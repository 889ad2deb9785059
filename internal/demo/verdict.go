package demo

import (
	"errors"
	"fmt"

	"github.com/wirefence/wirefence/fence"
)

// The statuses of the order.
const (
	packed    = "packed"    // by A, while it holds the lease
	shipped   = "shipped"   // by B, which took over
	cancelled = "cancelled" // by A, the zombie
)

// order is the row that both workers write.
type order struct {
	status, by string
	token      fence.Token
}

// outcome is the result of a round.
type outcome struct {
	a, b   fence.Token // of the two grants
	zombie event       // the answer to A's last write
	row    order
}

// judge returns nil if both rounds ended as expected.
func judge(without, with outcome) error {
	var differences []error
	if err := overwritten(without); err != nil {
		differences = append(differences, fmt.Errorf("round 1 did not show the overwrite: %w", err))
	}
	if err := refused(with); err != nil {
		differences = append(differences, fmt.Errorf("the fence did not hold in round 2: %w", err))
	}
	return errors.Join(differences...)
}

// overwritten returns nil if the zombie's write replaced that of its successor.
func overwritten(o outcome) error {
	switch {
	case o.b <= o.a:
		return fmt.Errorf("token %d of B is not above token %d of A", o.b, o.a)
	case o.zombie.Event != wrote:
		return fmt.Errorf("the last write of A was answered with %s", o.zombie)
	case o.row.status != cancelled || o.row.by != "A":
		return fmt.Errorf("the order is %s by %s", o.row.status, o.row.by)
	}
	return nil
}

// refused returns nil if the zombie got WF001 and changed nothing.
func refused(o outcome) error {
	switch {
	case o.b <= o.a:
		return fmt.Errorf("token %d of B is not above token %d of A", o.b, o.a)
	case o.zombie.Event != failed || o.zombie.Code != string(fence.StaleToken):
		return fmt.Errorf("the last write of A was answered with %s, not with %s", o.zombie, fence.StaleToken)
	case o.row.status != shipped || o.row.by != "B":
		return fmt.Errorf("the order is %s by %s", o.row.status, o.row.by)
	}
	return nil
}
