# `toolbus trace` in the place of Jaeger: it prints the calls to its log, and has no web page.
FROM toolbus
EXPOSE 4318
HEALTHCHECK --interval=2s --timeout=2s --start-period=5s \
    CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 4318), 2).close()"]
CMD ["trace", "--host", "0.0.0.0"]
