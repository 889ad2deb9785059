-- What the writers write to: a table that the proxy or an explicit check alone
-- guards, one with a resource for each row, and some with one resource each.
-- Each row says with which token it was written, and in which transaction.
create table journal (id integer not null, token bigint not null, tx bigint not null);
create index on journal (id);
create table documents (id integer not null, token bigint not null, tx bigint not null, writer integer not null);
create index on documents (writer, id);
select wirefence.protect('documents', 'doc:{id}');
do $$ begin
  if not exists (select from pg_roles where rolname = 'app') then
    create role app login;
    create role issuer login in role wirefence_issuer;
  end if;
  for n in 0..7 loop
    execute format('create table fixed_%s (id integer not null, token bigint not null, tx bigint not null)', n);
    perform wirefence.protect(format('fixed_%s', n)::regclass, 'doc:' || n);
  end loop;
end $$;
grant all on all tables in schema public to app;
grant select on journal to issuer;
