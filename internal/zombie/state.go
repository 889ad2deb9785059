package zombie

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// rowsOf is the rows of the tables at one moment, by table.
type rowsOf map[string][]Row

// columns are columns that differ from run to run by themselves, such as times and process
// numbers: by table, not to be compared.
type columns map[string]map[string]bool

// rowsNow copies the tables.
func (d *database) rowsNow(ctx context.Context, names []string) (rowsOf, error) {
	if err := d.find(ctx, names); err != nil {
		return nil, err
	}
	all := rowsOf{}
	for _, t := range d.tables {
		c, err := d.copy(ctx, t)
		if errors.As(err, new(noCopyError)) {
			return nil, unknown("%s %v, and so can't be compared", t.Name, err)
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Name, err)
		}
		all[t.Name] = slices.Collect(maps.Values(c.rows))
		for _, same := range c.bag {
			all[t.Name] = append(all[t.Name], same...)
		}
	}
	return all, nil
}

// texts are a table's rows in one order, without some columns.
func texts(rows []Row, without map[string]bool) (all []string) {
	for _, row := range rows {
		row = maps.Clone(row)
		maps.DeleteFunc(row, func(name string, _ *string) bool { return without[name] })
		all = append(all, row.text())
	}
	slices.Sort(all)
	return all
}

// differs names a table in which two states differ, apart from columns.
func (without columns) differs(a, b rowsOf) (table string, so bool) {
	for _, name := range slices.Sorted(maps.Keys(union(a, b))) {
		if !slices.Equal(texts(a[name], without[name]), texts(b[name], without[name])) {
			return name, true
		}
	}
	return "", false
}

func union(a, b rowsOf) rowsOf {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// add adds the columns in which states differ that would be equal if nothing differed by itself.
// It names a table that has another number of rows.
func (without columns) add(a, b rowsOf) (table string, ok bool) {
	for name := range union(a, b) {
		if len(a[name]) != len(b[name]) {
			return name, false
		}
		if len(a[name]) == 0 {
			continue
		}
		if without[name] == nil {
			without[name] = map[string]bool{}
		}
		var all []string
		for column := range a[name][0] {
			all = append(all, column)
			others := map[string]bool{}
			for other := range a[name][0] {
				others[other] = other != column
			}
			if !slices.Equal(texts(a[name], others), texts(b[name], others)) {
				without[name][column] = true
			}
		}
		if !slices.Equal(texts(a[name], without[name]), texts(b[name], without[name])) { // each column has the same values, in other rows
			for _, column := range all {
				without[name][column] = true
			}
		}
	}
	return "", true
}

// names are the columns, as in SQL.
func (without columns) names() (all []string) {
	for table, of := range without {
		for column := range of {
			all = append(all, table+"."+column)
		}
	}
	slices.Sort(all)
	return all
}
