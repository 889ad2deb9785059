package zombie

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Write is a change that the first run has committed when the second had the turn, or had had it.
type Write struct {
	Table       string `json:"table" says:"the table, or the partition, as in SQL"`
	Operation   string `json:"operation" says:"INSERT, UPDATE, DELETE or TRUNCATE"`
	Key         Row    `json:"key" says:"the columns of the row's key with their values as text; null if the table has none"`
	Before      Row    `json:"before" says:"the row before; null if there was none, or it isn't known"`
	After       Row    `json:"after" says:"the row afterwards; null if there is none"`
	Transaction uint32 `json:"transaction,omitempty" says:"the transaction's id; absent where the tables were compared"`
}

// state is what is known of the rows of the tables as changes go by.
type state struct {
	tables map[string]table
	rows   map[string]copied
}

func newState(tables []table, rows map[string]copied) *state {
	s := &state{map[string]table{}, rows}
	for _, t := range tables {
		s.tables[t.Name] = t
	}
	return s
}

// apply records a change and returns it with the row before.
func (s *state) apply(c change) Write {
	name := c.tables[0]
	t, rows := s.tables[name], s.rows[name].rows
	w := Write{Table: name, Operation: c.operation, Before: c.old, After: c.new, Transaction: c.transaction}
	if c.operation == opTruncate {
		clear(rows)
		return w
	}
	former := c.old
	if former == nil && c.operation == opUpdate {
		former = c.new // its key has not changed
	}
	if key, ok := keyOf(t, former); ok {
		if known := rows[key]; known != nil {
			w.Before = known
		}
		delete(rows, key)
	}
	if c.new == nil {
		w.Key = part(t, c.old)
		return w
	}
	w.Key, w.After = part(t, c.new), maps.Clone(c.new)
	for column, value := range w.Before { // those that are kept out of line and were not changed
		if _, told := w.After[column]; !told && c.operation == opUpdate {
			w.After[column] = value
		}
	}
	if key, ok := keyOf(t, c.new); ok && rows != nil {
		rows[key] = w.After
	}
	return w
}

// part is the key of a row, nil if it isn't known.
func part(t table, row Row) Row {
	if _, ok := keyOf(t, row); !ok {
		return nil
	}
	key := Row{}
	for _, name := range t.Key {
		key[name] = row[name]
	}
	return key
}

// differences are what a table's rows show of the changes between two copies.
func differences(t table, before, after copied) (all []Write) {
	for _, key := range slices.Sorted(maps.Keys(before.rows)) {
		old, now := before.rows[key], after.rows[key]
		switch {
		case now == nil:
			all = append(all, Write{Table: t.Name, Operation: opDelete, Key: part(t, old), Before: old})
		case old.text() != now.text():
			all = append(all, Write{Table: t.Name, Operation: opUpdate, Key: part(t, old), Before: old, After: now})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(after.rows)) {
		if before.rows[key] == nil {
			all = append(all, Write{Table: t.Name, Operation: opInsert, Key: part(t, after.rows[key]), After: after.rows[key]})
		}
	}
	for _, text := range slices.Sorted(maps.Keys(before.bag)) {
		for _, old := range before.bag[text][min(len(after.bag[text]), len(before.bag[text])):] {
			all = append(all, Write{Table: t.Name, Operation: opDelete, Before: old})
		}
	}
	for _, text := range slices.Sorted(maps.Keys(after.bag)) {
		for _, now := range after.bag[text][min(len(after.bag[text]), len(before.bag[text])):] {
			all = append(all, Write{Table: t.Name, Operation: opInsert, After: now})
		}
	}
	return all
}

// text is a row as one text, such as day='2026-11-23' n='7', in the order of the names.
func (r Row) text() string {
	var out strings.Builder
	for i, name := range slices.Sorted(maps.Keys(r)) {
		if i > 0 {
			out.WriteByte(' ')
		}
		out.WriteString(name)
		out.WriteByte('=')
		if r[name] == nil {
			out.WriteString("null")
		} else {
			out.WriteString(quoteLiteral(*r[name]))
		}
	}
	return out.String()
}

// String is a row for people: of the columns with their values.
func (r Row) String() string { return r.text() }

// Changed is the part of a row in which it differs from another.
func (r Row) Changed(from Row) Row {
	out := Row{}
	for name, value := range r {
		other, known := from[name]
		if !known || (value == nil) != (other == nil) || value != nil && *value != *other {
			out[name] = value
		}
	}
	return out
}

func quoteLiteral(text string) string {
	if _, err := strconv.ParseFloat(text, 64); err == nil || text == "true" || text == "false" {
		return text
	}
	return inQuotes(text)
}

func inQuotes(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
