// Package house tests the repository itself: that what the documents say and
// what the code has agree, and that nothing got in which belongs to one machine
// only.
package house
