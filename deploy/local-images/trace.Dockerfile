# `toolbus trace` in the place of Jaeger: it prints the calls to its log, and has no web page.
FROM toolbus
EXPOSE 4318
HEALTHCHECK NONE
CMD ["trace", "--host", "0.0.0.0"]
