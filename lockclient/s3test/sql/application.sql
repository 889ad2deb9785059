CREATE TABLE public.documents (name text PRIMARY KEY, object text NOT NULL);
CREATE ROLE writer LOGIN;
GRANT wirefence_issuer TO writer;
GRANT SELECT, INSERT, UPDATE ON public.documents TO writer;
